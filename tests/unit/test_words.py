"""Words that are not used, each with the word that is: over the code (identifiers, comments, strings), the pages and `ops`.

`docs/reference/glossary.md` defines the words that are used. CHANGELOG.md is exempt: it names what was renamed.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support import ROOT

FOLDERS = (
    "lakehouse", "streaming_jobs", "batch_jobs", "assets", "examples", "benchmarks/nexmark", "docs", "ops",
)  # fmt: skip
SUFFIXES = {".py", ".md", ".svg", ".yml", ".yaml", ".json", ".toml", ".properties", ".xml"}
EXEMPT = {"CHANGELOG.md"}

# what may be between two words: nothing or "_" in a name, a line's end in a text, the quotation
# marks between the parts of a string
BETWEEN = r"""(?:[\s_#-]|["']\s*f?["'])*"""
WORDS = {  # regular expression -> what to write instead
    "seams?": "handover; the command is `lakehouse bootstrap`",
    "reinject(s|ed|ing|ion)?": "replay",
    "upkeep": "maintenance",
    "park(s|ed|ing)?": "pause, paused",
    "ledgers?": "commit log, or log tables",
    "journal(s|led|ling)?": "commit log",
    "fingerprints?": "code version (of a table), checksum (of rows)",
    "bounded runs?": "batch run",
    "live runs?": "stream",
    "live (streaming )?quer(y|ies)": "streaming query",
    "live streams?": "stream",
    "live (and|or) (batch|bounded)": "stream and batch",
    "rows live|rows bounded": "rows_in_table, rows_recomputed",
    "put(s|ting)? (it |them |rows )?aside": "quarantine",
    "stay(s|ed)? aside": "stay quarantined",
    "let(s|ting)? (late rows )?in": "merge",
    "likewise": "the same, or repeat the words",
    "anew": "again",
    "as ever": "as before",
    "for ever": "without limit, without end",
    "mishaps?": "fault",
    "tells?|told|telling": "report, say, show, send",
    "hooks?": "notification; a hook is Dagster's",
    "snapshots?": "reference table; a snapshot is Delta's",
    "prov(e|es|ed|en|ing|able)|proofs?": "reconcile, reconciliation; deterministic",
    "un ?prov(en|able)": "not reconciled; UNVERIFIABLE",
    "gates?": "late filter",
    "borders?": "frontier",
    "giv(e|es|en|ing) up": "crash loop, or not tried again",
    "histories": "versioned tables, old versions",
    "makers?": "provenance, writers",
    "grains?": "partition_by",
    "redirect": 'late="side_output"',
    "asks nobody|nobody is asked": "has no authentication",
    "ended without a word|died without a word": "without an error message",
}
OF_PAGES = {"digests?": "checksum"}  # in the code a digest is a value
ALLOWED = (  # names of others, and of files of theirs
    "PostCommitHookProperties",
    "post_commithook_properties",
    "transaction.snapshot()",
    "Delta's snapshot",
    "Debezium's snapshot",
    "snapshot.mode",
    "snapshot STRING",
    '"snapshot"',
    "spark.databricks.delta.snapshotPartitions",
    "loop.run_forever",
    "server.serve_forever",
)


def pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{words.replace(' ', BETWEEN)})(?![a-z])", re.IGNORECASE)


@cache
def patterns(of_pages: bool) -> dict[re.Pattern[str], str]:
    words = WORDS | OF_PAGES if of_pages else WORDS
    return {pattern(each): instead for each, instead in words.items()}


@cache
def any_of(of_pages: bool) -> re.Pattern[str]:
    found = patterns(of_pages)
    return re.compile("|".join(f"(?:{each.pattern})" for each in found), re.IGNORECASE)


def apart(text: str) -> str:
    """The text without what is allowed, and with the words of a name like LiveRun apart; the lines stay."""
    for name in ALLOWED:
        text = text.replace(name, "")
    if "iceberg" in text.lower():  # whose word it is, too
        text = re.sub(r"snapshots?", "", text, flags=re.IGNORECASE)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)


def replaced(text: str, of_pages: bool = False) -> Iterator[str]:
    """A line for each word that is not to be used: where it is, and what to write instead."""
    text = apart(text)
    if not any_of(of_pages).search(text):
        return
    for each, instead in patterns(of_pages).items():
        for match in each.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"line {line}: {' '.join(match[0].split())!r}: write {instead}"


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    found += [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.yaml"), ROOT / "Makefile"]
    return sorted(
        path
        for path in found
        if (path.suffix in SUFFIXES or path.name == "Makefile") and path.name not in EXEMPT
    )


def test_replaced_words_are_not_used():
    hits = []
    for path in files():
        name = str(path.relative_to(ROOT))
        of_pages = path.suffix == ".md" or name.startswith("ops/")
        hits += [f"{name}: {each}" for each in replaced(name)]
        hits += [f"{name}, {each}" for each in replaced(path.read_text(), of_pages)]
    assert not hits, "\n" + "\n".join(hits)


def test_all_kinds_of_files_are_looked_at():
    names = {str(path.relative_to(ROOT)) for path in files()}
    assert {
        "README.md", "Makefile", "docs/reference/glossary.md", "docs/images/frontier.svg", "ops/grafana/jobs.json",
        "ops/prometheus/alerts.yml", "lakehouse/settings.py", "streaming_jobs/driver.py", "batch_jobs/repair.py",
        "assets/sensors.py", "assets/dagster.yaml", "examples/visits/tables.py", "benchmarks/nexmark/tables.py",
    } <= names  # fmt: skip


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("the live\n    # run of a table", "stream"),
        ("class LiveRun:", "stream"),
        ("live_run", "stream"),
        ('"a bounded "\n        f"run waits"', "batch run"),
        ("def _park(self)", "pause, paused"),
        ("rows that were put aside", "quarantine"),
        ("nobody is told", "report, say, show, send"),
        ("it waits forever, or for ever", "without limit, without end"),
        ("UNPROVABLE", "not reconciled; UNVERIFIABLE"),
        ("call_hooks()", "notification; a hook is Dagster's"),
    ],
)
def test_a_replaced_word_is_found_in_names_and_across_lines(text, instead):
    found = list(replaced(text))
    assert found and all(each.endswith(f": write {instead}") for each in found), found


@pytest.mark.parametrize(
    "text",
    [
        "a live\tdemo",
        "provenance, improve, approved",
        "an aggregate of the gateway",
        "let inputs be",
        "the run",
        "a compartment and a spark",
        "transaction.snapshot().version()",
    ],
)
def test_other_words_are_left_alone(text):
    assert not list(replaced(text))


def test_the_glossary_defines_each_word_once_with_its_counterparts():
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30 and {len(row) for row in rows} == {5}, (
        "word, meaning, Flink, Spark, Delta"
    )
    words = [re.sub(r"\[|\]\(.*?\)", "", row[0]).strip() for row in rows]
    assert sorted(words) == sorted(set(words)), "once"
    assert all(cell.strip() for row in rows for cell in row), "'-' where there is no counterpart"
