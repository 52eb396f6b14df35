"""As many random stories, runs of the state machine and hostile messages as one likes; what occurred, and what failed.

    make stories COUNT=500 [RUNS=50] [SEED=...] [WORKERS=2] [WRITE=docs/why/equivalence.md]

The seed is chosen by the clock unless given. What is done is kept in `.stories/<seed>.jsonl`, so that the same seed goes on where
it was interrupted. COUNT hostile messages of each format are sent, too. Exit code 1 if a story or a message failed, or if a
disturbance did not occur in any; of 500 stories and 10 runs also if a kind of source, window or hostile message, an operator, an
engine or a rule of the machine did not come up. Fewer stories only say so.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from textwrap import fill

from stories import machine, tally
from stories.hostile_tables import HOSTILE, never_sent, shown
from stories.suites import SUITES
from stories.work import STEPS, Piece, end_with, told

_SHARES = {"sensors": 1, "ads": 1, "windows": 2, "operators": 3, "sources": 3}  # of ten stories
_MANY = {"stories": 500, "runs": 10}  # in which each kind of what is drawn comes up
_AT_ONCE = 5  # stories of one piece of work: so many at most are told again after an interruption
# pieces of a worker, after which all make way for new ones: Spark keeps some of each query that it has run, and after an hour
# of thousands of them a JVM does little but collect garbage
_LASTS = 12
_WIDTH = 127  # of a line of the page
BEGIN, END = "<!-- stories -->", "<!-- end of stories -->"


def pieces(count: int, runs: int, seed: int) -> Iterator[Piece]:
    """The work, the suites in turn, so that an interrupted run has some of each."""
    wanted = {suite: count * share // 10 for suite, share in _SHARES.items()} | {"machine": runs}
    if count:
        yield Piece(HOSTILE, 0, count, seed)
    for number in range(max(wanted.values())):
        for place, suite in enumerate(wanted):
            size = 1 if suite == "machine" else _AT_ONCE
            if (left := wanted[suite] - number * size) > 0:
                yield Piece(
                    suite, number, min(size, left), seed * 1_000_000 + place * 100_000 + number
                )


def commit() -> str:
    known = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True
    ).stdout.strip()
    return known or "unknown"


def tell_all(todo: list[Piece], file: Path, workers: int) -> None:
    """Tells what is not in the file yet, a line each as it ends."""
    at, begun, number = commit(), time.monotonic(), 0
    with file.open("a") as lines:
        # not by the pool's own max_tasks_per_child: with it, Python 3.11 may never get to the next worker (gh-115634)
        for first in range(0, len(todo), _LASTS * workers):
            some = todo[first : first + _LASTS * workers]
            with ProcessPoolExecutor(
                workers, get_context("spawn"), end_with, (os.getpid(),)
            ) as pool:
                for future in as_completed([pool.submit(told, piece) for piece in some]):
                    today = datetime.now(UTC).date().isoformat()
                    line = future.result() | {"commit": at, "date": today}
                    lines.write(json.dumps(line) + "\n")
                    lines.flush()
                    number += 1
                    state = "FAILED" if line["failure"] else "agrees"
                    minutes = (time.monotonic() - begun) / 60
                    print(
                        f"{number} of {len(todo)}: {line['piece']} {state}, {line['seconds']} s; {minutes:.0f} min",
                        flush=True,
                    )


def by_suite(lines: list[dict]) -> dict[str, Counter[str]]:
    """How often what occurred in the stories of each suite, and in the runs of the machine."""
    of_suite: dict[str, Counter[str]] = {s: Counter() for s in (*_SHARES, "machine", HOSTILE)}
    for line in lines:
        of_suite[line["suite"]].update(line["occurred"])
    return of_suite


def lacking(lines: list[dict], count: int, runs: int) -> tuple[list[str], list[str]]:
    """What should have occurred in so many stories and runs and did not, and what so few of them need not show."""
    of_suite = by_suite(lines)
    stories = sum((of_suite[suite] for suite in _SHARES), Counter())
    absent = tally.missing(stories) if count else []
    kinds = [n for s in _SHARES for n in tally.left_out(of_suite[s], SUITES[s].shown, s)]
    kinds += tally.left_out(stories, (*tally.ENGINES, tally.EARLY), "any suite")
    kinds += never_sent(of_suite[HOSTILE])
    rules = tally.left_out(of_suite["machine"], machine.RULES, "machine")
    few: list[str] = []
    for names, size, many in ((kinds, count, _MANY["stories"]), (rules, runs, _MANY["runs"])):
        if size >= many:
            absent += names
        elif size:
            few += names
    return absent, few


def report(lines: list[dict], seed: int) -> tuple[str, str]:
    """One row of the table of runs, and what occurred in this one."""
    of_suite = by_suite(lines)
    failed = sum(bool(line["failure"]) for line in lines)
    commits, dates = (
        "`, `".join(sorted({line[name] for line in lines})) for name in ("commit", "date")
    )
    counts = [str(of_suite[suite]["stories"]) for suite in (*_SHARES, "machine")]
    row = f"| {seed} | {dates.replace('`', '')} | `{commits}` | {' | '.join(counts)} | {failed} |"
    stories = sum((of_suite[suite] for suite in _SHARES), Counter())
    seen = [f"{name} {stories[name]}" for name in tally.DISTURBANCES]
    steps = [f"{name.replace('_', ' ')} {of_suite['machine'][name]}" for name in machine.RULES]
    runs, sources = of_suite["machine"], of_suite["sources"]
    read = [f"{name.replace('_', ' ')} {sources[name]}" for name in SUITES["sources"].chosen]
    paragraphs = (
        f"Of the {stories['stories']} stories of seed {seed} so many had: {'; '.join(seen)}. They compared "
        f"{stories[tally.COMPARED]} rows. Ingest tables of the {sources['stories']} of sources: {'; '.join(read)}.",
        f"The {runs['stories']} runs of the state machine took {runs['steps']} steps: {'; '.join(steps)}.",
        f"Hostile messages: {shown(of_suite[HOSTILE])}.",
    )
    text = "\n\n".join(fill(each, _WIDTH, break_on_hyphens=False) for each in paragraphs)
    return row, text


def write(page: Path, row: str, text: str) -> None:
    """Puts the row into the page's table of runs, in place of an older one of the same seed, and the text below it."""
    before, _, rest = page.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    kept = [
        line
        for line in old.splitlines()
        if line[:2] == "| " and line[2].isdigit() and line.split()[1] != row.split()[1]
    ]
    head = [
        "| seed | date | commit | "
        + " | ".join(_SHARES)
        + f" | runs of {STEPS} steps | differences |",
        "|---" * (len(_SHARES) + 5) + "|",
    ]
    page.write_text(
        f"{before}{BEGIN}\n" + "\n".join([*head, *kept, row]) + f"\n\n{text}\n{END}{after}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="stories", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="stories in all")
    parser.add_argument("--runs", type=int, default=10, help="runs of the state machine")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--write", type=Path, help="a page of the docs, whose table gets this result"
    )
    given = parser.parse_args()
    folder = Path(".stories")
    folder.mkdir(exist_ok=True)
    file = folder / f"{given.seed}.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {line["piece"] for line in known if not line["failure"]}
    todo = [
        piece for piece in pieces(given.count, given.runs, given.seed) if piece.name not in done
    ]
    print(
        f"seed {given.seed}: {len(todo)} pieces of work to do, {len(done)} done before; kept in {file}",
        flush=True,
    )
    # as the workers import, and Spark's own
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    tell_all(todo, file, given.workers)
    latest = {line["piece"]: line for line in map(json.loads, file.read_text().splitlines())}
    row, text = report(list(latest.values()), given.seed)
    print(f"{row}\n{text}")
    if given.write:
        write(given.write, row, text)
    failures = [line for line in latest.values() if line["failure"]]
    for line in failures:
        print(f"\n{line['piece']} FAILED\n{line['failure']}", file=sys.stderr)
    absent, few = lacking(list(latest.values()), given.count, given.runs)
    if few:
        size = " and ".join(f"{many} {what}" for what, many in _MANY.items())
        print(f"never came up, and must in {size}: {', '.join(few)}")
    if absent:
        print(f"never occurred: {', '.join(absent)}", file=sys.stderr)
    return 1 if failures or absent else 0


if __name__ == "__main__":
    sys.exit(main())
