"""The repair: rewrites the partitions known to differ, and proves each again. `python -m batch_jobs.repair TABLE [--start --end]`

`_ledger/<table>.repairs.jsonl` keeps a line for each repair, with what it found before and after.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from batch_jobs.publisher import publishing
from lakehouse import bounded, causes, coverage, proof
from lakehouse.catalog import Catalog
from lakehouse.files import append_line, lines_backwards
from lakehouse.frontier import LEDGER, Certificate, Verdict
from lakehouse.lake import Lake
from lakehouse.ranges import Range, partition_range
from lakehouse.settings import Settings
from lakehouse.table import Table

# what a bounded run puts right without taking a decision: the input is as it was recorded, and so is the declaration
_UNASKED = (causes.BY_HAND, causes.TWICE, causes.DROPPED, causes.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Planned:
    """A partition known to differ; `refused` says why it is left as it is."""

    partition: str
    rows: int  # that differ
    cause: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Repaired:
    """A partition that was rewritten, and the verdict after that."""

    table: str
    partition: str
    rows: int  # that differed
    cause: str
    version: int
    verdict: Verdict
    at: datetime


def plan(settings: Settings, catalog: Catalog, name: str, span: Range | None = None, *, unasked: bool = False) -> list[Planned]:
    """The partitions of a table known to differ, by their certificates; changes nothing, needs no session.

    `unasked` leaves those to a person that `settings.repair_of` does not allow, that a repair did not help, and whose
    cause asks for a decision: changed code, dimensions or inputs. Raises UnknownTable.
    """
    table = catalog.table(name)
    partitions, rows = settings.repair_of(name)
    done = list(repairs(settings, table))
    today = [r for r in done if r.at > datetime.now(UTC) - timedelta(days=1)]
    partitions, rows = partitions - len(today), rows - sum(r.rows for r in today)
    found = []
    for certificate in coverage.coverage(settings, catalog, table).different:
        key = next(Range(certificate.start, certificate.end).partitions(table.grain))
        whole = partition_range(key, table.grain)
        if span and not (span.start <= whole.start and whole.end <= span.end):
            continue
        differ = certificate.missing + certificate.extra + certificate.changed
        refused = _refused(certificate, key, done) if unasked else ""
        if unasked and not refused and (partitions < 1 or rows < differ):
            refused = f"beyond what LAKEHOUSE_REPAIR allows of {name} a day"
        if not refused:
            partitions, rows = partitions - 1, rows - differ
        found.append(Planned(key, differ, certificate.cause, refused))
    return found


def _refused(certificate: Certificate, partition: str, done: list[Repaired]) -> str:
    if not certificate.cause.startswith(_UNASKED):
        return "its cause asks for a decision"
    last = next((r for r in done if r.partition == partition), None)
    if last and last.verdict == "DIFFERENT":
        return f"a repair at {last.at:%Y-%m-%dT%H:%M:%SZ} did not help"
    return ""


def run(lake: Lake, name: str, span: Range | None = None, *, unasked: bool = False) -> Iterator[Repaired]:
    """Rewrites one partition after the other by its bounded run, proves it again, and tells the verdict.

    It ends at the first that is DIFFERENT still: its certificate says by which rows. Raises JobError, RangeError.
    """
    table = lake.catalog.table(name)
    with publishing(lake.settings, table):
        for planned in plan(lake.settings, lake.catalog, name, span, unasked=unasked):
            if planned.refused:
                continue
            whole = partition_range(planned.partition, table.grain)
            commit = bounded.backfill(lake, table, whole)
            after = proof.reconcile(lake, table, whole)
            repaired = Repaired(
                name, planned.partition, planned.rows, planned.cause, commit.version, after.verdict, datetime.now(UTC)
            )
            append_line(_path(lake.settings, table), json.dumps(asdict(repaired), default=lambda at: at.isoformat()))
            yield repaired
            if after.verdict == "DIFFERENT":
                return


def repairs(settings: Settings, table: Table) -> Iterator[Repaired]:
    """What was repaired, last first."""
    for line in map(json.loads, lines_backwards(_path(settings, table))):
        yield Repaired(**line | {"at": datetime.fromisoformat(line["at"])})


def _path(settings: Settings, table: Table) -> Path:
    return settings.root / LEDGER / f"{table.name}.repairs.jsonl"


if __name__ == "__main__":
    from batch_jobs.commands import main

    main("repair", sys.argv[1:])
