"""Commits of a table of the sensors, as its commit log has them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakehouse.declare.catalog import load
from lakehouse.settings import Settings
from lakehouse.storage.log.commits import NOTHING, Commit

START = datetime(2026, 1, 1, tzinfo=UTC)
CATALOG = load(Settings(tables=("lakehouse.examples.sensors.tables",)))
TABLE = replace(CATALOG.table("sensor_averages"), late="update")


def micro_batch(batch: int, late: tuple[int, int] | None = None) -> Commit:
    """A micro-batch that read version `batch` of the input; its late rows missed windows between two minutes."""
    missed = {"late": 3, "late_from": minute(late[0]), "late_to": minute(sum(late))} if late else {}
    offset = {"reservoirVersion": batch + 1, "index": -1}
    return Commit(
        "sensor_averages", "stream", 1, batch, batch + 1, minute(batch), "", arrived=7, watermark=minute(batch),
        frontier=minute(batch), inputs={"tables": {"valid_readings": offset}}, **missed,
    )  # fmt: skip


def batch_run(version: int, hour: int, nothing: bool) -> Commit:
    start = minute(60 * hour)
    return Commit(
        "sensor_averages", "batch", 0, 0, NOTHING if nothing else version, minute(version), "", start=start,
        end=start + timedelta(hours=1), inputs={"tables": {"valid_readings": version}},
    )  # fmt: skip


def minute(minutes: int) -> datetime:
    return START + timedelta(minutes=minutes)
