"""A declaration that changed under a checkpoint: what changed is named, and what is harmless goes on."""

import json
import linecache
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakehouse import around, duplicates, expect, row_table, session, tumbling
from lakehouse.declare import catalog, kinds
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints, declared_state, table_state
from support import changing_tables, starts
from support.changing_tables import changed, doubled, larger, more
from support.lines import note_read


@pytest.fixture
def begun(tmp_path) -> tuple[Settings, catalog.Catalog]:
    """A lakehouse whose queries have all begun."""
    settings, known = (
        Settings(root=tmp_path, tables=(changing_tables.__name__,)),
        catalog.catalog_of([changing_tables]),
    )
    for each in known:
        starts.begin(Lakehouse(settings, known), each)
        note_read(settings, each, 1, each.inputs if each.kind.is_derived else ())
    return settings, known


def refused(begun, name: str, **changes: object) -> str:
    settings, known = begun
    other = changed(known, name, **changes)
    return "\n".join(declared_state.refusals(Lakehouse(settings, other), [other.table(name)]))


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("sums", {"window": tumbling("2 hours")}, "window=tumbling, 2:00:00: its checkpoint was made with tumbling, 1:00:00"),
        ("visits", {"window": session("1 minute")}, "window=session, gap 0:01:00: its checkpoint was made with session, gap"),
        ("sums", {"keys": ("user", "at")}, "keys=user, at: its checkpoint was made with user, and rows of both would stand in"),
        ("clicks", {"delay": timedelta(minutes=1)}, "delay=0:01:00: its checkpoint was made with 0:00:05"),
        ("clicks", {"watermark_by": "user"}, "watermark_by=user: its checkpoint was made with none, and rows before and after"),
        ("clicks", {"event_time": "seen"}, "event time=seen: its checkpoint was made with at, and rows are in partitions by"),
        ("counted", {"context": around(after="1 minute")}, "context=0:00:00 before to 0:01:00 after: its checkpoint was made"),
        ("counted", {"deduplicate": duplicates("user", within="1 minute")}, "duplicates=user within 0:01:00: its checkpoint"),
        ("sums", {"inputs": ("counted",)}, "input=counted: its checkpoint was made with clicks, and its positions are those"),
        ("sums", {"layer": "silver"}, "layer=silver: its checkpoint was made with gold, and the rows that are there would stay"),
        ("sums", {"partition_by": "day"}, "partitions=day: its checkpoint was made with hour"),
        ("totals", {"final_rows": True}, "final_rows=True: its checkpoint was made with none, and a row would count from"),
        ("totals", {"kind": kinds.VERSIONED}, "kind=versioned: its checkpoint was made with keyed"),
        ("sums", {"transformation": larger}, "function: its checkpoint was made with other code, and rows before and after"),
        ("visits", {"sql": "SELECT 1"}, "query=SELECT 1: its checkpoint was made with SELECT window"),
    ],
)  # fmt: skip
def test_what_changed_is_named_with_both_values_and_what_it_means(begun, name, changes, told):
    assert told in refused(begun, name, **changes)


def test_changed_code_is_shown_as_the_lines_that_differ_below_the_remedy(begun):
    first, *lines = refused(
        begun, "sums", transformation=larger, window=tumbling("2 hours")
    ).splitlines()
    assert "window=tumbling, 2:00:00" in first and "lakehouse upgrade fill sums" in first
    heading, removed, added = lines
    assert heading == "  function:"
    assert removed.startswith("    - ") and "F.sum('value')" in removed
    assert added.startswith("    + ") and "F.sum(F.col('value') * 2)" in added


@pytest.mark.parametrize(
    "changes",
    [
        {"late": "update"}, {"late": "drop"}, {"expectations": (expect.column_values_to_not_be_null("user"),)}, {"owner": "me"},
        {"stale_after": timedelta(hours=1)}, {"metrics": ("value",)}, {"tolerance": 0.1}, {"deterministic": False},
        {"early_results": timedelta(seconds=1)}, {"pipeline": "elsewhere"},
    ],
    ids=str,
)  # fmt: skip
def test_what_decides_no_row_of_the_stream_goes_on(begun, changes):
    assert refused(begun, "sums", **changes) == ""


def test_remedies_are_those_that_each_kind_has(begun):
    assert "`lakehouse upgrade fill sums` fills the changed table beside" in refused(
        begun, "sums", window=tumbling("2 hours")
    )
    assert (
        "declare it under another name, or take the change back; `lakehouse bootstrap NAME` fills"
        in refused(begun, "sums", layer="silver")
    )
    assert "`lakehouse table accept clicks` has it go on from here" in refused(
        begun, "clicks", delay=timedelta(minutes=1)
    )
    assert "`lakehouse table accept counted` has it go on from here" in refused(
        begun, "counted", transformation=more
    )
    assert "`lakehouse table accept ticks` has it go on from here" in refused(
        begun, "ticks", transformation=larger
    )
    for changes in ({"window": tumbling("20 seconds")}, {"keys": ()}):
        assert "lakehouse table accept" not in refused(
            begun, "ticks", transformation=larger, **changes
        )
    assert "lakehouse table accept" not in refused(begun, "sums", transformation=larger), (
        "its open windows are state"
    )
    assert "`lakehouse backfill totals` has its job compute it whole" in refused(
        begun, "totals", transformation=doubled
    )
    assert "lakehouse table accept" not in refused(
        begun, "counted", context=around(after="1 minute"), transformation=more
    )


def test_code_is_the_function_what_it_calls_and_the_constants_in_it(begun, monkeypatch):
    kept = declared_state.declaration(begun[1], begun[1].table("counted"))
    assert kept["function _above"].startswith("def _above(") and kept["constant _LEAST"] == "0"
    settings, known = begun
    path = settings.root / "_commit_log" / "counted.declared.json"
    for name, text in (
        ("constant _LEAST", "7"),
        ("function _above", kept["function _above"].replace(">", ">=")),
    ):
        path.write_text(json.dumps({"at": "", "declaration": kept | {name: text}}))
        (change,) = declared_state.changes(Lakehouse(settings, known), known.table("counted"))
        assert (change.field, change.then, change.now) == (name, text, kept[name])
    # as another Python would write the same code
    spaced = kept["function _above"].replace("where(F", "where( F")
    path.write_text(json.dumps({"at": "", "declaration": kept | {"function _above": spaced}}))
    assert declared_state.changes(Lakehouse(settings, known), known.table("counted")) == []


def test_comments_and_docstrings_are_no_change():
    def made(source: str) -> Table:
        name = f"<declared {hash(source)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        names: dict = {"__name__": __name__}
        exec(compile(source, name, "exec"), names)
        return row_table(layer="silver")(names["copied"])

    one = made('def copied(clicks):\n    """Words."""\n    return clicks  # all\n')
    other = made('def copied(clicks):\n    """Others."""\n\n    return (clicks)\n')
    known = catalog.catalog_of([changing_tables])
    assert declared_state.declaration(known, one) == declared_state.declaration(known, other)


def test_of_a_table_that_was_removed_nothing_needs_to_fit(begun):
    settings, _ = begun
    (settings.root / "_commit_log" / "sums.jsonl").unlink()
    assert refused(begun, "sums", window=tumbling("2 hours")) == ""
    write_rows(settings.root / "gold" / "sums", 0)
    assert refused(begun, "sums", window=tumbling("2 hours")) == "", "it is there, and has no row"
    write_rows(settings.root / "gold" / "sums__quarantine", 1)
    assert "window=" in refused(begun, "sums", window=tumbling("2 hours"))


def write_rows(path: Path, rows: int) -> None:
    write_deltalake(str(path), pa.table({"value": pa.array(range(rows), pa.int64())}))


def test_a_stream_that_has_read_nothing_begins_as_it_is_declared_now(begun):
    settings, known = begun
    sums, other = known.table("sums"), changed(known, "sums", window=tumbling("2 hours"))
    (settings.root / "_commit_log" / "sums.jsonl").unlink()
    (settings.root / "_checkpoints" / "sums" / "1" / "offsets").mkdir(parents=True)
    note_read(settings, sums, 0, sums.inputs)
    assert "input=counted" in refused(begun, "sums", inputs=("counted",)), "it has a position"
    starts.begin(Lakehouse(settings, known), sums)
    assert checkpoints.standing(settings, sums).generation == 1, "as it was"
    for _ in range(2):  # the second is of a process that was killed before it read
        starts.begin(Lakehouse(settings, other), other.table("sums"))
        assert checkpoints.standing(settings, sums).generation == 2, (
            "the checkpoint is of another plan"
        )
    note_read(settings, sums, 1, sums.inputs)
    assert "window=" in refused(begun, "sums"), "what it began with is kept"


def test_a_declaration_that_cannot_be_read_is_named_and_the_way_out_works(begun):
    settings, known = begun
    path = settings.root / "_commit_log" / "sums.declared.json"
    path.write_text('{"at": "2026')
    with pytest.raises(
        DeclarationError, match=r"file=.*sums\.declared\.json: .* restore it, or remove it"
    ):
        starts.begin(Lakehouse(settings, known), known.table("sums"))
    path.unlink()
    starts.begin(Lakehouse(settings, known), known.table("sums"))
    assert json.loads(path.read_text())["declaration"]["window"] == "tumbling, 1:00:00"


def test_of_a_lakehouse_that_kept_no_declaration_it_is_said_what_is_not_known(begun, capsys):
    settings, known = begun
    sums = known.table("sums")
    path = settings.root / "_commit_log" / "sums.declared.json"
    for code_version, said in (
        (sums.code_version, ""),
        ("0123", "its last rows were written under 0123, and what"),
    ):
        path.unlink()
        written = Commit("sums", "stream", 1, 0, 1, datetime.now(UTC), code_version)
        CommitLog(settings, sums).append(written)
        starts.begin(Lakehouse(settings, known), sums)
        told = capsys.readouterr().err
        assert said in told and bool(said) == bool(told)
        assert path.exists(), "from now on it is known"
    starts.begin(Lakehouse(settings, known), sums)
    assert capsys.readouterr().err == "", "once"


def test_of_a_table_without_a_note_no_log_is_read(begun):
    settings, known = begun
    lakehouse, sums = Lakehouse(settings, known), known.table("sums")
    assert declared_state.changes(lakehouse, sums) == []
    first = delta_log.commit_file(lakehouse.path(sums), 0)
    first.parent.mkdir(parents=True)
    first.write_text('{"commitInfo": {"userMetadata": "{\\"app\\": \\"sums:stream:1\\"}"}}')
    table_state.note_path(settings, sums).unlink()
    assert declared_state.changes(lakehouse, sums) is None
