"""Batch assets behind tables: requested by what the sensors tell of a lakehouse on disk, without Spark."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from assets import automation, definitions, sensors
from assets.checks import STREAM_EQUALS_BATCH
from lakehouse.declare import catalog
from lakehouse.ranges import EPOCH, partition_format
from lakehouse.settings import Settings
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
# written otherwise than the tables' own
HOURS = dg.HourlyPartitionsDefinition("2026-01-01-00:00", timezone="UTC")
TABLE = "sensor_averages"


@dg.asset(
    deps=[TABLE, "sensor_readings"],
    partitions_def=HOURS,
    automation_condition=automation.on_closed(),
    name="report",
)
def hourly_report() -> None: ...


@dg.asset(
    deps=[TABLE],
    partitions_def=HOURS,
    automation_condition=automation.on_closed() & automation.reconciled(TABLE),
    name="invoice",
)
def hourly_invoice() -> None: ...


@dg.asset(
    deps=[TABLE],
    partitions_def=dg.DailyPartitionsDefinition("2026-01-01", timezone="UTC"),
    automation_condition=automation.on_closed(),
)
def daily() -> None: ...


@dg.asset(deps=["report"], partitions_def=HOURS, automation_condition=automation.on_closed())
def summary() -> None: ...


@dataclass
class Lakehouse:
    """Two tables as their streaming job leaves them, and Dagster's two ticks: that of the sensors, that of conditions."""

    settings: Settings
    instance: dg.DagsterInstance
    version: int = -1
    cursors: dict[str, str | None] = field(default_factory=dict)
    conditions: object = None

    def __post_init__(self) -> None:
        self.catalog = catalog.load(self.settings)
        assets = dg.Definitions(assets=[hourly_report, hourly_invoice, daily, summary])
        self.definitions = dg.Definitions.merge(definitions.build(self.settings), assets)

    def stream(self, *hours: int, frontier: float) -> None:
        """Micro-batches with rows of these hours, after which the tables are complete up to hour `frontier`."""
        self.version += 1
        ahead, at = (
            FIRST + timedelta(hours=frontier),
            EPOCH + timedelta(days=20_000, seconds=self.version),
        )
        record, derived = (
            self.catalog.table(name) for name in ("sensor_readings", "valid_readings")
        )
        read = {"sensor-readings": {"0": 10 * (self.version + 1)}}
        self._commit(record, hours, at, None, read)
        end = {"reservoirVersion": self.version + 1, "index": -1}
        self._commit(derived, hours, at, ahead, {"tables": {record.name: end}, "references": {}})
        end = {"reservoirVersion": self.version, "index": 0}
        self._commit(
            self.catalog.table(TABLE),
            hours,
            at,
            ahead,
            {"tables": {derived.name: end}, "references": {}},
        )

    def _commit(self, table, hours, at, ahead, inputs) -> None:
        keys = [(FIRST + timedelta(hours=h)).strftime(partition_format("hour")) for h in hours]
        rows = pa.table({"v": list(hours), "_origin": ["stream"] * len(keys), "_partition": keys})
        write_deltalake(
            str(table_path(self.settings, table)), rows, mode="append", partition_by=["_partition"]
        )
        commit = Commit(
            table.name,
            "stream",
            0,
            self.version,
            self.version,
            at,
            "",
            frontier=ahead,
            inputs=inputs,
        )
        CommitLog(self.settings, table).append(commit)

    def tell(self, *, crash: bool = False) -> list[dg.AssetMaterialization]:
        """A tick of the sensors; after a crash their cursors are not stored."""
        told = []
        for make in (sensors.closed_partitions, sensors.report_written_tables):
            sensor = make(self.settings, self.catalog)
            tick = sensor.evaluate_tick(
                dg.build_sensor_context(self.instance, cursor=self.cursors.get(sensor.name))
            )
            told += tick.asset_events
            if not crash:
                self.cursors[sensor.name] = tick.cursor
        for event in told:
            self.instance.report_runless_asset_event(event)
        return [event for event in told if event.asset_key == dg.AssetKey(TABLE)]

    def requested(self, asset: str) -> list[str]:
        """A tick of the automation conditions: the partitions of `asset` that are requested."""
        found = dg.evaluate_automation_conditions(
            self.definitions, self.instance, cursor=self.conditions
        )
        self.conditions = found.cursor
        return sorted(found.get_requested_partitions(dg.AssetKey(asset)))

    def judged(self, passed: bool) -> None:
        """The check, in a run as always: what it looked at is what Dagster knew by then."""

        @dg.asset_check(asset=TABLE, name=STREAM_EQUALS_BATCH)
        def check() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=passed)

        assert dg.materialize(
            [dg.AssetSpec(TABLE), check],
            selection=dg.AssetSelection.checks(check),
            instance=self.instance,
        ).success


@pytest.fixture
def lakehouse(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        lakehouse = Lakehouse(
            Settings(root=tmp_path, tables=("lakehouse.examples.sensors.tables",)), instance
        )
        assert lakehouse.requested("report") == []  # the first look finds nothing to follow
        yield lakehouse


def test_a_partition_is_requested_once_when_it_has_closed(lakehouse):
    lakehouse.stream(0, 1, frontier=0.9)
    assert lakehouse.tell() == [] and lakehouse.requested("report") == []
    lakehouse.stream(1, frontier=1.1)
    assert len(lakehouse.tell()) == 1
    assert lakehouse.requested("report") == ["2026-01-01-00:00"]
    for _ in range(2):  # the record that it reads, too, grows all the time
        lakehouse.stream(1, frontier=1.2)
        assert lakehouse.tell() == [] and lakehouse.requested("report") == []


def test_hours_that_close_late_and_at_once_are_told_and_requested_empty_ones_too(lakehouse):
    lakehouse.stream(0, frontier=1.5)
    lakehouse.tell()
    lakehouse.requested("report")
    for _ in range(3):  # a silent source holds the frontier back
        lakehouse.stream(1, 2, 5, frontier=1.5)
        assert lakehouse.tell() == [] and lakehouse.requested("report") == []
    lakehouse.stream(5, frontier=5.5)
    events = lakehouse.tell()
    assert [(e.partition, e.metadata["rows"].value) for e in events] == [
        ("2026-01-01-01", 3), ("2026-01-01-02", 3), ("2026-01-01-03", 0), ("2026-01-01-04", 0),
    ]  # fmt: skip
    assert {e.metadata["frontier"].value for e in events} == {
        (FIRST + timedelta(hours=5.5)).timestamp()
    }
    assert {e.metadata["delta_version"].value for e in events} == {4}
    assert events[0].metadata["offsets"].value == {"sensor-readings": {"0": 50}}
    assert lakehouse.requested("report") == [f"2026-01-01-0{hour}:00" for hour in (1, 2, 3, 4)]
    assert lakehouse.requested("report") == []


def test_a_tick_that_is_repeated_after_a_crash_tells_the_same_and_no_third_time(lakehouse):
    lakehouse.stream(0, frontier=1.1)
    first = lakehouse.tell(crash=True)
    assert lakehouse.requested("report") == ["2026-01-01-00:00"]
    assert lakehouse.tell() == first
    assert lakehouse.requested("report") == ["2026-01-01-00:00"], (
        "at least once: a run over the same rows"
    )
    assert lakehouse.tell() == [] and lakehouse.requested("report") == []


def test_what_is_replaced_after_the_request_is_requested_again(lakehouse):
    lakehouse.stream(0, frontier=1.1)
    lakehouse.tell()
    assert lakehouse.requested("report") == ["2026-01-01-00:00"]
    assert dg.materialize(
        [hourly_report], partition_key="2026-01-01-00:00", instance=lakehouse.instance
    ).success
    lakehouse.instance.report_runless_asset_event(
        dg.AssetMaterialization(TABLE, partition="2026-01-01-00")
    )
    assert lakehouse.requested("report") == ["2026-01-01-00:00"]
    assert lakehouse.requested("report") == []


def test_what_follows_a_batch_asset_is_requested_when_that_has_run(lakehouse):
    lakehouse.stream(0, frontier=1.1)
    lakehouse.tell()
    assert lakehouse.requested("summary") == []
    assert dg.materialize(
        [hourly_report], partition_key="2026-01-01-00:00", instance=lakehouse.instance
    ).success
    assert lakehouse.requested("summary") == ["2026-01-01-00:00"]


def test_a_day_waits_for_its_hours(lakehouse):
    lakehouse.stream(0, frontier=23.9)
    lakehouse.tell()
    assert lakehouse.requested("daily") == []
    lakehouse.stream(23, frontier=24.1)
    lakehouse.tell()
    assert lakehouse.requested("daily") == ["2026-01-01"]


def test_a_failed_check_holds_back_whatever_closes_until_it_passes(lakehouse):
    lakehouse.stream(0, frontier=1.1)
    lakehouse.tell()
    assert lakehouse.requested("report") == ["2026-01-01-00:00"]
    lakehouse.judged(False)
    assert lakehouse.requested("report") == []
    for hour in (1, 2):  # and not only until the next partition
        lakehouse.stream(hour, frontier=hour + 1.1)
        lakehouse.tell()
        assert lakehouse.requested("report") == []
    lakehouse.judged(True)
    assert lakehouse.requested("report") == ["2026-01-01-01:00", "2026-01-01-02:00"]
    assert lakehouse.requested("report") == []


def test_reconciled_waits_for_the_certificate(lakehouse):
    lakehouse.stream(0, frontier=1.1)
    lakehouse.tell()
    assert lakehouse.requested("invoice") == []
    lakehouse.judged(True)
    assert lakehouse.requested("invoice") == ["2026-01-01-00:00"]
    lakehouse.stream(1, frontier=2.1)
    lakehouse.tell()
    assert lakehouse.requested("invoice") == [], "the reconciliation does not know of it yet"
    lakehouse.judged(True)
    assert lakehouse.requested("invoice") == ["2026-01-01-01:00"]


def test_one_sensor_evaluates_the_conditions_of_assets_merged_in_and_runs_from_the_start(lakehouse):
    sensors = {
        s.name: s.default_status
        for s in lakehouse.definitions.get_repository_def().sensor_defs
        if isinstance(s, dg.AutomationConditionSensorDefinition)
    }
    assert sensors == {"automation": dg.DefaultSensorStatus.RUNNING}
