"""Which partitions of a report are to be computed: closed ones that are not yet, or not since their inputs were rewritten."""

from lakehouse.batch import late_merge
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, Range, floor, joined, partition_range
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import report_files
from lakehouse.storage.log.commit_log import frontier


def due(lakehouse: Lakehouse, table: Table) -> list[Range]:
    """The ranges of a report to compute now, from the first row of its inputs on, not before `settings.since`.

    By logs alone, without a session.
    """
    ahead = frontier(lakehouse.settings, table)
    held = [
        partition_range(file[f"partition.{PARTITION}"], each.partition_by).start
        for each in table.closes_with
        for file in delta_log.files(lakehouse.path(each))
        if file["num_records"]
    ]
    if ahead is None or not held:
        return []
    first = floor(min(held), PARTITION_LENGTHS[table.partition_by])
    start = max(first, lakehouse.settings.first_day)
    computed = report_files.computed(lakehouse.settings, table)
    computed -= set(late_merge.outdated(lakehouse, table))
    keys = Range(start, ahead).partitions(table.partition_by) if start < ahead else ()
    return joined(partition_range(key, table.partition_by) for key in keys if key not in computed)
