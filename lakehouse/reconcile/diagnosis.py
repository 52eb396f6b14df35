"""The causes why a table differs from its batch run: by its log, its input's log, the log tables and a second computation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from lakehouse import ranges
from lakehouse.declare.table import Table
from lakehouse.reconcile.coverage import latest
from lakehouse.reconcile.invalidation import reaches, version_of
from lakehouse.reconcile.provenance import Provenance, written_by
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.delta_log import Change
from lakehouse.storage.delta.digest import EMPTY, Digest
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import report_files
from lakehouse.storage.log.certificates import Certificate
from lakehouse.storage.log.commit_log import dropped_by_spark

LOST = "a data file is missing"
BY_HAND = "rows changed by hand"
TWICE = "a batch written twice"
INPUT_BY_HAND = "input changed by hand"
DROPPED = "rows dropped by Spark"
NOT_DETERMINISTIC = "not deterministic"
DIMENSION = "dimension changed"
CODE = "code changed"
STATES = "kept states differ"
UNANSWERED = "answers are missing"
TIED = "rows may tie"
REPORT = "a report's file is not of its rows"
UNKNOWN = "not known"

NOT_COMPUTED = "the report is not computed yet; a backfill of this range computes it"


def causes(
    lakehouse: Lakehouse,
    table: Table,
    partitions: Sequence[str],
    computed: Mapping[str, Digest],
    again: Callable[[], Mapping[str, Digest]],
    ties: Sequence[str],
) -> dict[str, str]:
    """Returns the cause for each partition that differs, as far as it can be known: the first that applies, with evidence.

    `computed` are digests of the batch run, `again` computes it a second time. `ties` names the
    expressions of the function that take any of several rows that tie.
    """
    if not partitions:
        return {}
    # a certificate from before the table was made is about another table of that name
    identity = delta_log.made(lakehouse.path(table))
    assert identity is not None  # it has partitions
    equal = latest(lakehouse.settings, table, "EQUAL")
    reconciled = {key: equal[key] for key in equal if key in partitions}
    reconciled = {key: c for key, c in reconciled.items() if c.at >= identity[1]}
    # only later changes are evidence
    wrote = {key: reconciled[key].version if key in reconciled else -1 for key in partitions}
    own = _changes(lakehouse, table, min(wrote.values()))
    inputs = []
    for source in lakehouse.catalog.timed_inputs(table):
        for change, read in _input_changes(lakehouse, source, reconciled, partitions):
            inputs.append((source, change, read))
    made = written_by(lakehouse.settings, table, partitions)
    second = again()

    def cause(key: str) -> str:
        own_changes = [
            change for change in own if change.version > wrote[key] and key in change.partitions
        ]
        for change in own_changes:
            if not change.app:
                return f"{BY_HAND}: {change} is by no run of this lakehouse"
        for change in own_changes:
            if change.again or (key in reconciled and change.by_stream):
                return f"{TWICE}: {change} is of a batch whose rows were there"
        for source, change, read in inputs:
            is_later = not change.ours and change.version > read[key]
            if is_later and reaches(change, source, table, key):
                return f"{INPUT_BY_HAND}: {change} of {source.name} is by no run of this lakehouse"
        since = reconciled[key].at if key in reconciled else None
        if dropped := dropped_by_spark(lakehouse.settings, table, since):
            return f"{DROPPED}: {dropped} since the last reconciliation, which the late filter had accepted"
        return (
            _unsteady(computed.get(key, EMPTY), second.get(key, EMPTY))
            or _others(table, made.get(key, Provenance()))
            or tied(ties)
            or f"{UNKNOWN}: each commit on the table and its input is ours, and computed again it gives the same rows"
        )

    return {key: cause(key) for key in partitions}


def tied(expressions: Sequence[str]) -> str:
    """Returns the cause if the function takes one of several rows by an order in which they may tie."""
    if not expressions:
        return ""
    return (
        f"{TIED}: {', '.join(expressions)} takes any of the rows that are the same in what it orders by; order by a struct that "
        "also has what it takes, or something that no two rows have in common"
    )


def unanswered(rows: int) -> str:
    """Returns the cause if rows have no recorded answer that a batch run could repeat."""
    return f"{UNANSWERED}: {rows} rows have no recorded answer of the lookup; a backfill or repair asks for them"


def of_files(
    lakehouse: Lakehouse, table: Table, rows: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Returns the verdict and its cause for each partition of a report whose rows are EQUAL and whose file is of other rows.

    `rows`: the checksum of the rows, by partition.
    """
    done, faults = report_files.computed(lakehouse.settings, table), {}
    for key, held in rows.items():
        if key not in done:
            faults[key] = {"verdict": "PENDING", "detail": NOT_COMPUTED}
        elif why := report_files.fault(lakehouse.settings, table, key, held):
            cause = f"{REPORT}: {why}; a repair draws it again"
            faults[key] = {"verdict": "DIFFERENT", "cause": cause}
    return faults


def of_states(certificate: Certificate, states: datetime | None) -> Certificate:
    """Returns the certificate, as DIFFERENT if states kept in its range are not those that the earlier rows give."""
    if states is None or not certificate.start < states <= certificate.end:
        return certificate
    if certificate.verdict != "EQUAL":
        return certificate
    cause = (
        f"{STATES}: its rows are equal, but those kept at {ranges.text(states)}, with which later ranges begin, are "
        "not what the rows before give; a repair of this range keeps them again"
    )
    return replace(certificate, verdict="DIFFERENT", cause=cause)


def lost(file: str) -> str:
    """Returns the cause if the table's log names a file that is not on disk."""
    return f"{LOST}: {file} is named by the table's log and is not there; a repair computes its rows again"


def _input_changes(
    lakehouse: Lakehouse,
    of: Table,
    reconciled: Mapping[str, Certificate],
    partitions: Sequence[str],
) -> Iterator[tuple[Change, Mapping[str, int]]]:
    """Yields the changes of an input, each with the reconciled versions of that input, by partition."""
    read = dict.fromkeys(partitions, -1)
    read |= {key: version_of(certificate, of.name) for key, certificate in reconciled.items()}
    column = lakehouse.catalog.event_time(of) if of.kind.reads_sources else ""
    return ((change, read) for change in _changes(lakehouse, of, min(read.values()), column))


def _changes(lakehouse: Lakehouse, table: Table, after: int, column: str = "") -> list[Change]:
    """Returns the changes later than version `after`, as far back as the log goes."""
    path = lakehouse.path(table)
    return delta_log.changes(path, max(after, delta_log.oldest(path) - 1), column) or []


def _unsteady(first: Digest, second: Digest) -> str:
    if first == second:
        return ""
    evidence = f"computed twice from the same input, it gave {first} and {second}"
    return f"{NOT_DETERMINISTIC}: {evidence}; correct the function, or declare deterministic=False"


def _others(table: Table, made: Provenance) -> str:
    """Returns the cause if the partition's writers had other dimensions or other code; empty if they had not."""
    if len(made.references) > 1:
        return f"{DIMENSION}: while it was written, from {dict(made.references[0])} to {dict(made.references[-1])}"
    if others := [version for version in made.code_versions if version != table.code_version]:
        return f"{CODE}: written under declaration {', '.join(others)}, now {table.code_version}; a backfill brings it under this"
    return ""
