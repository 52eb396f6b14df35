"""Partitions that a batch run would leave as they are, by logs and certificates alone: no row of them is read."""

from collections.abc import Iterable, Mapping

from lakehouse.batch import batch_state, compute
from lakehouse.declare.table import Table
from lakehouse.reconcile import coverage
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate


def unchanged(lakehouse: Lakehouse, table: Table, keys: Iterable[str]) -> dict[str, Certificate]:
    """Returns those of the partitions that a batch run would leave as they are, each with its certificate.

    The certificate is EQUAL to the last bit. Since then neither the declaration has changed, nor the rows, their quarantine,
    their inputs, or the versions of their reference tables. A table with states, lookups or drawn files has none, because a
    batch run also brings these up to date.
    """
    if not table.deterministic or table.ttl or table.lookup or table.kind.is_report:
        return {}
    certified = coverage.latest(lakehouse.settings, table)
    if certified.keys().isdisjoint(keys := list(keys)):
        return {}  # nor is a look at the logs noted, which a preview of a first run is not to leave
    equal = {p.key for p in coverage.partitions(lakehouse, table) if p.verdict == "EQUAL"}
    equal -= batch_state.read(lakehouse, table).waiting
    read = {"references": compute.pinned(lakehouse, table)}

    def holds(last: Certificate) -> bool:
        others = {name: versions for name, versions in last.inputs.items() if name != "tables"}
        is_exact = last.checksum_in_table == last.checksum_recomputed
        return is_exact and last.code_version == table.code_version and others == read

    sound = {key: certified[key] for key in keys if key in equal and holds(certified[key])}
    return sound if sound and _keeps_quarantine(lakehouse, table, sound) else {}


def _keeps_quarantine(
    lakehouse: Lakehouse, table: Table, certified: Mapping[str, Certificate]
) -> bool:
    """Returns True if the partitions' quarantine was not changed since their certificates, of which it says nothing."""
    path, first = lakehouse.path(table, "quarantine"), min(c.at for c in certified.values())
    if not delta_log.exists(path):
        return False
    since = delta_log.at(path, first)
    changes = None if since is None else delta_log.changes(path, since)
    return changes is not None and all(c.partitions.isdisjoint(certified) for c in changes)
