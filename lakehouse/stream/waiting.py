"""The reason why a table waits or is empty, in one line: by commit logs and file statistics alone, without a JVM."""

from datetime import UTC, datetime, timedelta

from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, PARTITION_LENGTHS, floor, text
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog, frontier

_FAR = timedelta(minutes=10)  # of event time: a smaller lag is normal between two steps
_A_STEP = timedelta(minutes=1)  # after its last commit, in which a table may catch up


def waiting(lakehouse: Lakehouse, table: Table, rows: int | None) -> str:
    """Returns why the table waits or has no rows; empty if it does not wait. `rows`: how many it has, if it is made."""
    settings, catalog = lakehouse.settings, lakehouse.catalog
    if not table.kind.is_streamed:
        return ""
    line = next(CommitLog(settings, table).by_stream(), None)
    if table.kind.reads_sources:
        return _of_ingest(table, line is not None, frontier(settings, table), rows)
    inputs = {
        each.name: frontier(settings, each) or BEGINNING for each in catalog.timed_inputs(table)
    }
    if not inputs:
        return ""
    last = min(inputs, key=lambda name: inputs[name])
    complete = inputs[last]
    if complete == BEGINNING:
        return "" if rows else f"no rows: its input {last} has no frontier yet"
    if line is None:
        return f"it has read nothing yet: {last} is complete up to {text(complete)}; {_job(table)}"
    reached = frontier(settings, table) or BEGINNING
    ahead = complete - table.after
    if _is_behind(table, reached, ahead) and (
        ahead - reached > _FAR or datetime.now(UTC) - line.at > _A_STEP
    ):
        stands = text(reached) if reached > BEGINNING else "nothing"
        return f"behind: complete up to {stands}, its input {last} up to {text(complete)}"
    if rows or table.kind.is_upserted:
        return ""
    return _of_empty(lakehouse, table, reached)


def _of_ingest(table: Table, has_begun: bool, reached: datetime | None, rows: int | None) -> str:
    if not has_begun:
        return f"it has read nothing yet; {_job(table)}"
    if rows and (reached or BEGINNING) == BEGINNING:
        what = (
            f"row that meets marker={table.marker!r}" if table.marker else "row of each partition"
        )
        return f"its event time has not begun: no {what} has come, so windows behind it stay open"
    return ""


def _job(table: Table) -> str:
    return f"`lakehouse stream status {table.pipeline}` shows its job"


def _is_behind(table: Table, reached: datetime, ahead: datetime) -> bool:
    if table.window is not None and table.window.regular:
        return _closes(table, reached) <= ahead  # between two ends there is nothing to do
    return ahead - reached > _FAR


def _of_empty(lakehouse: Lakehouse, table: Table, reached: datetime) -> str:
    """Returns why a table has no rows though it is as far as its input."""
    bounds = _bounds(lakehouse, table)
    if bounds is None:
        return "no rows: its input has none"
    counted = [line for line in lakehouse.commit_log(table).by_stream() if line.arrived]
    # each row prolongs its session, so the last known row decides
    is_session = table.window is not None and table.window.kind == "session"
    closes = _closes(table, bounds[is_session])
    if table.window is not None and closes > reached:
        which = "last session closes" if is_session else "first window closes"
        return (
            f"rows wait: the frontier is {text(reached)}, the {which} at {text(closes)}; it closes once a later row "
            "comes, or by itself if the topic is declared with quiet_timeout"
        )
    late = sum(line.late for line in counted)
    quarantined = sum(line.quarantined for line in counted)
    return (
        f"no rows: of those of its input {late:,} came late, {quarantined:,} were quarantined, and its function left out "
        "the others"
    )


def _bounds(lakehouse: Lakehouse, table: Table) -> tuple[datetime, datetime] | None:
    """Returns the first and the last event time of the inputs, by the statistics of their files; None if they hold no row."""
    moments: list[datetime] = []
    for each in lakehouse.catalog.timed_inputs(table):
        column = lakehouse.catalog.time_statistic(each)
        for file in delta_log.files(lakehouse.path(each)):
            bounds = (file.get(f"{bound}.{column}") for bound in ("min", "max"))
            moments += [
                m.replace(tzinfo=m.tzinfo or UTC) for m in bounds if file["num_records"] and m
            ]
    return (min(moments), max(moments)) if moments else None


def _closes(table: Table, moment: datetime) -> datetime:
    """Returns the earliest end of the first window that holds a row of that event time."""
    window = table.window
    if window is None or window.kind == "count":
        length = PARTITION_LENGTHS[table.partition_by]
        return floor(moment, length) + length
    if window.kind == "session":
        return moment + window.size
    return window.first_with(moment).end
