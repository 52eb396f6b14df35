"""The seam: where a new table's bounded run over history ends and its live run begins, at a frontier of its input.

Behind it no row is still to come that is not late, so a bounded run may compute all of history there. Ahead of it the
live run computes every window, reading the input from the first version that holds a row of one. So nothing is left
out and nothing is there twice, whenever either of them runs.
"""

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import compute
from lakehouse.declare.columns import WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.ranges import EPOCH, GRAINS, Range, text
from lakehouse.storage import begun_with, delta_log
from lakehouse.storage.checkpoints import began
from lakehouse.storage.commits import NOTHING
from lakehouse.storage.files import alone, replace_file
from lakehouse.storage.handovers import Seam, seam_of, seam_path
from lakehouse.storage.journal import frontier
from lakehouse.storage.lake import Lake
from lakehouse.transform import lateness, plan

_END = datetime(9999, 1, 1, tzinfo=UTC)


def begin(lake: Lake, table: Table) -> Seam:
    """Sets the table's seam at the last full partition behind its input's frontier; the one that is set, if it is of use.

    Raises RangeError for a record or a snapshot, JobError if the live run has begun without one, if the input has no
    frontier yet, or if rows ahead of it are in versions of the input that a stream cannot read any more, DeclarationError if the
    table was begun as another (`begun_with`).
    """
    lake.catalog.check_derived(table)
    begun_with.begin(lake.settings, lake.catalog, table)
    with alone(seam_path(lake.settings, table).with_suffix(".lock")):  # of two at once the second finds what the first has set
        return _begin(lake, table)


def _begin(lake: Lake, table: Table) -> Seam:
    started, known = began(lake.settings, table), seam_of(lake.settings, table)
    if known and (started or delta_log.oldest(lake.path(lake.catalog.driving_input(table))) <= known.version):
        return known
    if started:
        raise JobError(
            f"table={table.name}: its live run has begun without a seam, and writes all that its input's log had then; "
            "what lies before that a backfill computes"
        )
    driving = lake.catalog.driving_input(table)
    last = next((c for c in lake.journal(driving).live() if c.frontier and c.frontier > EPOCH), None)
    if last is None:
        raise JobError(f"table={table.name}: its input {driving.name} has no frontier yet; start its job first")
    histories = [frontier(lake.settings, history) or EPOCH for history in lake.catalog.histories(table)]
    ahead = ranges.floor(min([last.frontier - table.after, *histories]), GRAINS[table.partition_by])
    reads = reads_from(lake, table, ahead)
    before = seam_of(lake.settings, driving)
    if before and reads < before.frontier:
        raise JobError(
            f"table={table.name}: windows ahead of {text(ahead)} read {driving.name} from {text(reads)} on, but its live run "
            f"writes from {text(before.frontier)} on only; try again when its frontier is further"
        )
    seam = Seam(
        frontier=ahead, input=driving.name, version=first_version(lake, driving, reads), until=last.version,
        inputs=last.inputs, fingerprint=table.fingerprint, at=datetime.now(UTC),
    )  # fmt: skip
    kept = asdict(seam) | {"frontier": text(ahead), "at": text(seam.at)}
    replace_file(seam_path(lake.settings, table), kept)
    begun_with.note_seam(lake.settings, table, kept)
    return seam


def check(lake: Lake, table: Table) -> None:
    """Puts the file of the seam back if it is gone and the live run has begun there: it would write what lies before it.

    Raises JobError if it has not begun, and batch runs have filled the table up to a seam of which the file is gone.
    """
    if began(lake.settings, table):
        _put_back(lake, table)
        return
    filled = any(c.role == "bounded" and c.version != NOTHING for c in lake.journal(table).rewriting())
    if filled and seam_of(lake.settings, table) is None:
        raise JobError(
            f"table={table.name}, file={seam_path(lake.settings, table)}: it held the seam up to which batch runs have filled "
            "the table, and it is gone, so the live run would write their rows again; restore the file, or run "
            f"`lakehouse seam {table.name}`, which sets another and computes what lies before it"
        )


def _put_back(lake: Lake, table: Table) -> None:
    path, noted = seam_path(lake.settings, table), begun_with.noted_seam(lake.settings, table)
    if path.exists():
        if not noted:  # by an earlier version
            begun_with.note_seam(lake.settings, table, json.loads(path.read_text()))
    elif noted:
        replace_file(path, noted)
        told = f"table={table.name}, file={path}: it was gone, and holds where the live run began ({noted['frontier']})"
        print(f"{told}; it is put back from what was noted with the declaration", file=sys.stderr, flush=True)


def history(lake: Lake, table: Table) -> Range | None:
    """The whole partitions from the input's first row up to the seam; None if there is no row behind it."""
    return compute.behind(lake, table, seam_of(lake.settings, table).frontier)


def reads_from(lake: Lake, table: Table, ahead: datetime) -> datetime:
    """The first event time of the input that what lies after `ahead` is computed from."""
    if table.window is None or table.window.kind != "session":
        return lateness.context(Range(ahead, _END), table).start
    # a session that is open there may have begun at any time before
    snapshots = lake.snapshots(compute.pinned(lake, table))
    sessions = compute.preview(lake, plan.plan_of(lake, table), Range(ahead, _END), snapshots)
    first = sessions.agg(F.min(f"{WINDOW}.start")).head()[0]
    return min(ahead, first.astimezone(UTC)) if first else ahead


def first_version(lake: Lake, driving: Table, reads: datetime) -> int:
    """The first version of the input that may hold a row from the instant `reads` on, by the statistics of its files."""
    path, column = lake.path(driving), lake.catalog.event_time(driving)
    oldest = delta_log.oldest(path)
    kept = delta_log.changes(path, oldest or -1, column)
    before = delta_log.files(path, oldest) if oldest else []
    if kept is None or any(delta_log.may_reach(file, column, reads) for file in before):
        raise JobError(
            f"table={driving.name}: rows from {text(reads)} on are in versions up to {oldest}, and its log does not keep those "
            "before it any more, so no stream can begin with them; try again when its frontier is further, or keep more "
            "(LAKEHOUSE_VERSIONS, LAKEHOUSE_HISTORY)"
        )
    return next((c.version for c in kept if any(span.end > reads for span in c.spans)), delta_log.latest(path))
