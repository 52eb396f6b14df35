"""What is kept of a key: exactly what it was; a life cut anywhere goes on as if it had not been."""

from dataclasses import asdict
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import nan
from random import Random

import pyarrow as pa
import pytest

from lakehouse import row_table
from lakehouse.batch.kept_states import Kept, holds, worth_keeping
from lakehouse.declare.columns import ARRIVAL
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings
from lakehouse.storage.disk.files import replace_file
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.keyed import state_files
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.versions import savepoints
from lakehouse.transform.functions.process_state import (
    KeyedCoProcess,
    Life,
    OutputTag,
    Rules,
    _placed,
    from_text,
    in_order,
    lived,
    outputs,
    to_text,
)
from lakehouse.transform.functions.process_ttl import by_key
from support.calls import MINUTE, START, Told, at, row

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        {"n": 3, "mean": 0.1, "big": 2**80, "text": "ü $", "nothing": {}, "list": [1.0, 1, True]},
        [Decimal("1.20"), b"\x00\xff", date(2026, 1, 1), timedelta(days=-1, microseconds=1)],
        {("a", 1): START, 2: (1, (2, [3])), None: "none"},
        {"$": "not a kind", "v": [float("inf")]},
    ],
)
def test_a_value_comes_back_as_it_was(value):
    back = from_text(to_text(value))
    assert back == value and repr(back) == repr(value)


def test_what_stands_in_a_state_twice_is_one_again():
    shared = [1]
    round_trip = from_text(to_text({"a": shared, "b": {"c": shared}, "d": [1]}))
    round_trip["a"].append(2)
    assert round_trip == {"a": [1, 2], "b": {"c": [1, 2]}, "d": [1]}
    endless: list = []
    endless.append(endless)
    back = from_text(to_text(endless))
    assert back[0] is back


@pytest.mark.parametrize("value", [{1, 2}, object(), datetime(2026, 1, 1), START.astimezone()])
def test_what_would_not_come_back_as_it_was_is_refused(value):
    if isinstance(value, datetime) and value.utcoffset() == timedelta(0):
        value = value.astimezone(tz=datetime.strptime("+0100", "%z").tzinfo)
    with pytest.raises(DeclarationError, match="state, value="):
        to_text({"field": value})


def told(rows: list[dict], cuts: list[datetime]) -> list[tuple]:
    """What is given of the rows of a key whose life is written and read at each cut, and forgotten when it is over."""
    rules, life, found = Rules(Told(), "at", MINUTE, lasting=True), Life(), []
    for since, until in zip([START, *cuts], [*cuts, None], strict=True):
        part = [
            r for r in in_order(rows, "at") if r["at"] >= since and not (until and r["at"] >= until)
        ]
        found += [(made["at"], made["what"]) for made in lived(rules, life, part, until)]
        if life.last and until:
            life = Life.of(life.kept()) if until - life.last <= MINUTE else Life()
    return found


def test_a_life_that_is_cut_anywhere_gives_the_same():
    rng = Random(5)
    for _ in range(200):
        rows = [
            row(rng.randrange(0, 600), n, set=[rng.randrange(0, 80)], clear=rng.random() < 0.2)
            for n in range(rng.randrange(1, 12))
        ]
        cuts = sorted(at(rng.randrange(1, 700)) for _ in range(rng.randrange(1, 6)))
        assert told(rows, cuts) == told(rows, [])


def test_rows_of_one_instant_without_a_source_have_an_order_all_the_same():
    rows = [row(n % 3, page=n) for n in range(12)]
    for _ in range(5):
        assert in_order(Random().sample(rows, len(rows)), "at") == in_order(rows, "at")


def test_what_is_no_number_is_one_key():
    rows = pa.table({"k": [nan, 1.0, nan, None], "n": [1, 2, 3, 4]})
    found = by_key(rows, ["k"])
    assert [[each["n"] for each in of] for of in found.values()] == [[1, 3], [2], [4]]
    assert list(by_key(rows.slice(2, 1), ["k"])) == list(found)[:1], "so a kept state is found"


def test_results_of_windows_come_before_rows_of_a_topic_of_the_same_instant():
    nothing = dict.fromkeys(("time", "topic", "partition", "offset"))
    result = row(1, page=0) | {ARRIVAL: row(1)[ARRIVAL] | nothing}
    sent = result | {ARRIVAL: nothing | {"time": at(1), "topic": "t", "partition": 0, "offset": 7}}
    assert in_order([sent, result], "at") == [result, sent]


def test_an_output_with_another_event_time_than_its_row_is_refused():
    class Early(Told):
        def on_row(self, state, row, timers):
            yield {"at": row["at"] - MINUTE, "what": "before"}

    with pytest.raises(DeclarationError, match="give the other instant in a column of its own"):
        list(lived(Rules(Early(), "at", MINUTE, lasting=True), Life(), [row(0)]))


class Parted(Told):
    """Every second row is of a side output."""

    side_outputs = (OutputTag("second", "at TIMESTAMP, n BIGINT"),)

    def on_row(self, state, row, timers):
        state["n"] = state.get("n", 0) + 1
        second = self.side_outputs[0]
        yield second.row(n=state["n"]) if state["n"] % 2 == 0 else {"what": f"row {state['n']}"}


def test_a_row_of_a_side_output_has_the_event_time_of_its_row():
    made = list(outputs(Parted(), [row(1), row(2)], MINUTE, "at"))
    assert [{name: r[name] for name in r if name != ARRIVAL} for r in made] == [
        {"at": at(1), "main": {"at": at(1), "what": "row 1"}},
        {"at": at(2), "second": {"at": at(2), "n": 2}},
    ]
    late = OutputTag("second", "at TIMESTAMP").row(at=START)
    with pytest.raises(DeclarationError, match="has the event time of its row or timer"):
        _ = _placed(Rules(Parted(), "at", MINUTE), Life(last=START), late, at(5))


class Both(KeyedCoProcess):
    output = "at TIMESTAMP, what STRING"

    def on_row1(self, state, row, timers):
        yield {"what": f"first {row['page']}"}

    def on_row2(self, state, row, timers):
        yield {"what": f"second {row['page']}"}


def test_a_row_of_two_inputs_goes_to_the_method_of_its_own():
    rows = [
        row(2, _first=None, _second={"page": "b"}),
        row(1, _first={"page": "a"}, _second=None),
    ]
    made = [each["what"] for each in outputs(Both(), rows, MINUTE, "at")]
    assert made == ["first a", "second b"]


def test_a_timer_in_the_past_is_refused():
    rules = Rules(Told(), "at", MINUTE, lasting=True)
    assert list(lived(rules, Life(), [row(5, set=(0,))])), "at the instant of the row"
    with pytest.raises(DeclarationError, match="a timer is not before its row"):
        list(lived(rules, Life(), [row(5, set=(-1,))]))

    class Endless(Told):
        def on_timer(self, state, at, timers):
            timers.set(at)
            return ()

    with pytest.raises(DeclarationError, match="later than the timer that sets it"):
        list(lived(Rules(Endless(), "at", MINUTE, lasting=True), Life(), [row(5, set=(1,))]))


def test_kept_states_hold_until_a_row_before_them_is_changed():
    kept = Kept(START + HOUR, "", 0, {"rows": 7}, "", "")

    def changed(version: int, start: datetime) -> list[Commit]:
        rewritten = {"start": start, "end": start + HOUR}
        return [Commit("rows", "batch", 0, 0, version, START, "", **rewritten)]

    assert (
        holds(kept, []) and holds(kept, changed(7, START)) and holds(kept, changed(8, START + HOUR))
    )
    assert not holds(kept, changed(8, START))


def test_old_states_are_kept_more_sparsely():
    hours = [START + HOUR * n for n in range(24 * 100)]
    inside = [hours[-1] + MINUTE * n for n in range(1, 8)]
    kept = worth_keeping([*hours, *inside], HOUR)
    assert {*inside[-3:], *hours[-47:]} <= kept and inside[0] not in kept
    assert START in kept and START + timedelta(days=1) not in kept, "the first of a month"
    assert START + timedelta(days=70) in kept and START + timedelta(days=70, hours=1) not in kept
    assert len(kept) < 48 + 62 + 3 + 3
    assert worth_keeping([], HOUR) == set()


def test_a_savepoint_takes_the_states_that_are_whole(tmp_path, caplog):
    @row_table(layer="gold", ttl="1 day")
    def remembered(things):
        return things

    here, there = (Settings(root=tmp_path / name) for name in ("here", "there"))
    folder = table_path(here, remembered, "state")
    for hour, name in enumerate(("whole", "being written", "lost")):
        if name != "lost":
            (folder / name).mkdir(parents=True)
            (folder / name / "part.parquet").write_text("")
        kept = Kept(START + HOUR * hour, name, 0, {"things": 7}, "", "{}")
        if name != "being written":
            replace_file(folder / kept.note, asdict(kept) | {"at": kept.at.isoformat()})
    savepoints._take_states(here, remembered, there)
    assert "folder=" in caplog.text and "lost: it is gone; remembered computes" in caplog.text
    (found,) = state_files.kept(there, remembered)
    assert found == Kept(START, "whole", 0, {"things": 7}, "", "{}")
    assert (table_path(there, remembered, "state") / "whole" / "part.parquet").exists()
    assert not (table_path(there, remembered, "state") / "being written").exists()
