"""The state of the tables, read without a JVM: from Delta's logs, the commit logs, the certificates."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lakehouse.cli import query
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Layer, Table
from lakehouse.ranges import past_beginning, text
from lakehouse.reconcile import coverage
from lakehouse.reconcile.verdicts import Outcomes, Verdicts
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, delta_tables, log_state
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_json
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import commit_log, log_tables, table_content
from lakehouse.storage.log.table_content import Content
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.storage.versions import upgrades
from lakehouse.stream.waiting import waiting

_LATE = """SELECT "table", sum(late) FROM (
    SELECT "table", max(late) AS late FROM _commits WHERE role = 'stream' GROUP BY "table", generation, batch
) GROUP BY "table" """  # a batch that was replayed has two lines


_ASIDE = """SELECT "table", max(at), max(quarantined) FROM _commits WHERE role = 'stream' AND quarantined > 0
    GROUP BY "table", generation, batch"""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The state of one table; a value of None does not exist, or not yet."""

    layer: Layer
    table: str
    kind: str
    pipeline: str
    rows: int | None
    version: int | None
    frontier: datetime | None
    late: int | None
    quarantined: int | None
    # the gravest of the last verdicts of all ranges; for a keyed table, which is reconciled whole, the
    # last verdict
    verdict: str | None
    why: str = ""  # why the verdict is not the recorded one: the change of the table since
    waits: str = ""  # why it waits, or is empty


def overview(lakehouse: Lakehouse) -> list[TableStatus]:
    """Returns the states of all tables, each after its inputs."""
    late = late_counts(lakehouse)
    outcomes = Verdicts(lakehouse.settings).now()
    contents = table_content.contents(lakehouse.settings, lakehouse.catalog)
    return [
        _state(lakehouse, table, contents, late.get(table.name, 0), outcomes.get(table.name))
        for table in lakehouse.catalog
    ]


def late_counts(lakehouse: Lakehouse) -> dict[str, int]:
    """Returns the number of rows that came too late for each table since its beginning, by the log tables."""
    return dict(_of_commits(lakehouse, _LATE))


def _of_commits(lakehouse: Lakehouse, sql: str, *, refreshed: bool = False) -> list[tuple]:
    if not refreshed:
        log_tables.refresh(lakehouse.settings, lakehouse.catalog)
    path = layout.log_table(lakehouse.settings, "_commits")
    if not delta_log.exists(path):
        return []
    read = {"_commits": path}
    return query.as_answer(sql, delta_tables.select(sql, read, {}), None, read).rows


def _verdict(
    lakehouse: Lakehouse, table: Table, contents: Mapping[str, Content], outcomes: Outcomes
) -> tuple[str | None, str]:
    """Returns the verdict that holds now, and why it is not the recorded one: the table may have been changed since."""
    verdict = outcomes.verdict if table.kind.is_upserted else outcomes.in_force
    if verdict != "EQUAL" or not table.kind.is_derived:
        return verdict, ""
    covered = coverage.coverage(lakehouse, table, contents)
    if covered.lost:
        why = f"a data file is missing ({covered.lost[0].file})"
        return "DIFFERENT", f"{_counted(len(covered.lost))}: {why}"
    if covered.changed:
        since = f"since it was reconciled EQUAL: {covered.changed[0].why}"
        return "PENDING", f"{_counted(len(covered.changed))} {since}"
    return verdict, ""


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'s' if partitions > 1 else ''} changed"


def _state(
    lakehouse: Lakehouse,
    table: Table,
    contents: Mapping[str, Content],
    late: int,
    outcomes: Outcomes | None,
) -> TableStatus:
    kind, path, content = table.kind, lakehouse.path(table), contents[table.name]
    quarantine = lakehouse.path(table, "quarantine")
    rows = _rows(path, table, content)
    verdict, why = _verdict(lakehouse, table, contents, outcomes) if outcomes else (None, "")
    ahead = past_beginning(commit_log.frontier(lakehouse.settings, table))
    return TableStatus(
        table.layer,
        table.name,
        kind.name,
        table.pipeline,
        rows,
        None if rows is None else content.version,
        ahead,
        late if table.has_late_rows and rows is not None else None,
        delta_log.open_table(quarantine).count() if delta_log.exists(quarantine) else None,
        verdict,
        why,
        waiting(lakehouse, table, rows),
    )


def _rows(path: Path, table: Table, content: Content) -> int | None:
    if content.version < 0:
        return None
    # the rows that a deletion vector marks count in a file's statistics
    return log_state.rows(path) if table.kind.is_upserted else content.rows


def lost_quarantines(lakehouse: Lakehouse, *, refreshed: bool = False) -> dict[str, int]:
    """Returns, for ingest tables whose quarantine was removed, the rows that, by the log tables, were
    quarantined before the present one was made.

    No run brings them back. A backfill computes those of other tables again. `refreshed`: whether the log tables have
    all commits already.
    """
    lost: dict[str, int] = {}
    for name, at, rows in _of_commits(lakehouse, _ASIDE, refreshed=refreshed):
        table = lakehouse.catalog.tables.get(name)
        if table is None or not table.kind.reads_sources:
            continue
        made = delta_log.made(lakehouse.path(table, "quarantine"))
        if made is None or datetime.fromisoformat(at) < made[1]:
            lost[name] = lost.get(name, 0) + rows
    return lost


def quarantine_reasons(lakehouse: Lakehouse, table: Table, reason: str = "") -> query.Answer:
    """Returns how many rows are quarantined for each reason that contains the text."""
    return query.run(
        lakehouse,
        "SELECT count(*) AS rows, regexp_replace(reason, ', (got|at character) .*', '') AS reason "
        f"{_matching(table, reason)} GROUP BY 2 ORDER BY 1 DESC",
    )


def quarantined(
    lakehouse: Lakehouse, table: Table, reason: str = "", limit: int = 0
) -> query.Answer:
    """Returns the newest quarantined rows, each with its place and its time of arrival; all for the limit 0."""
    sources = lakehouse.catalog.sources_of(table).values()
    places = {source.place for source in sources}
    place = places.pop() if len(places) == 1 else RecordSource.place
    in_message = ", _arrival['place'] AS place" if any(s.framing for s in sources) else ""
    columns = (
        f"{place}, _arrival['offset'] AS offset{in_message}, _arrival['time'] AS arrived, value"
    )
    newest = (
        f"SELECT reason, {columns} {_matching(table, reason)} ORDER BY arrived DESC, 2, offset DESC"
    )
    return query.run(lakehouse, newest, limit or None)


def _matching(table: Table, reason: str) -> str:
    text = reason.replace("'", "''")
    return f"FROM {table.name}__quarantine WHERE strpos(reason, '{text}') > 0"


def declaration(catalog: Catalog, table: Table) -> dict[str, object]:
    """Returns the parts of the declaration, by name, without those that it leaves out."""
    facts = {
        "layer": table.layer,
        "kind": table.kind.name,
        "pipeline": table.pipeline,
        "owner": table.owner,
        "inputs": [_input(catalog, name) for name in table.inputs],
        "read by": [t.name for t in catalog if table.name in t.inputs],
        "event time": catalog.event_time(table),
        "delay": str(table.delay) if table.delay else "",
        "marker": table.marker,
        "watermark by": table.watermark_by,
        "window": str(table.window or ""),
        "context": str(table.context or ""),
        "ttl": str(table.ttl or ""),
        "final rows": table.final_rows,
        "duplicates": str(table.deduplicate or ""),
        "keys": list(table.keys),
        "refresh": str(table.refresh) if table.refresh else "",
        "report": str(table.report or ""),
        "late": table.late if table.has_late_rows else "",
        "partitions": table.partition_by if table.kind.has_partitions else "",
        "tolerance": table.tolerance or "",
        "metrics": list(table.metrics),
        "expectations": [str(e) for e in table.expectations],
        "code_version": table.code_version,
    }
    return {name: value for name, value in facts.items() if value}


@dataclass(frozen=True, slots=True)
class Read:
    """A version of a table without event time, and the time when it was made, if that is still known."""

    version: int
    made: datetime | None

    def __str__(self) -> str:
        if self.made is None:
            return f"version {self.version}"
        age = str(datetime.now(UTC) - self.made).partition(".")[0]
        return f"version {self.version}, made {age} ago"


def reads(lakehouse: Lakehouse, table: Table) -> dict[str, Read]:
    """Returns the versions of reference and keyed tables that the stream's last rows saw; for a reference table, its own."""
    if table.kind.is_reference:
        version = delta_log.latest(lakehouse.path(table))
        read = {table.name: version} if version >= 0 else {}
    else:
        last = next(lakehouse.commit_log(table).by_stream(), None)
        inputs = last.inputs if last else {}
        read = dict(inputs.get("references", {}))
        read |= {name: versions[-1] for name, versions in inputs.get(SEEN, {}).items()}
    tables = lakehouse.catalog.tables
    paths = {name: lakehouse.path(tables[name]) for name in read if name in tables}
    return {n: Read(read[n], delta_log.written(path, read[n])) for n, path in paths.items()}


def steps(settings: Settings, table: Table) -> dict[str, str]:
    """Returns for each function of the table's steps how its plan is made, as the job said last; empty if that is not known."""
    try:
        job = read_json(layout.job_file(settings, table.pipeline, "status.json"))
        [query] = [query for query in job["queries"] if query["table"] == table.name]
        plans = query["plans"].items()
    except (OSError, ValueError, KeyError):
        return {}
    return {name: f"Spark plans each: {why}" if why else "prepared" for name, why in plans}


@dataclass(frozen=True, slots=True)
class Beside:
    """The version beside a table.

    :param table: the name by which it is queried.
    :param state: `promoted`: it is the table's previous version; else the new one.
    :param since: the time since which it is there.
    :param frontier: its frontier; None if it has read nothing yet.
    :param rows: the number of its rows; None if it is not made yet.
    """

    table: str
    state: upgrades.State
    since: datetime
    frontier: datetime | None
    rows: int | None

    def __str__(self) -> str:
        what = "the former version" if self.state == "promoted" else self.state
        ahead = f"complete up to {text(self.frontier)}" if self.frontier else "nothing read yet"
        return f"{self.table}: {what}, since {text(self.since)}; {ahead}, {self.rows or 0:,} rows"


def beside(lakehouse: Lakehouse, table: Table) -> Beside | None:
    """Returns the version beside a table; None if there is none. Raises JobError if the note of it cannot be read."""
    upgrade = upgrades.upgrade(lakehouse.settings, table)
    if upgrade is None:
        return None
    other = upgrades.beside(lakehouse.settings, table)
    since = datetime.fromisoformat(upgrade.since or upgrade.at)
    ahead = past_beginning(commit_log.frontier(other, table))
    rows = _rows(table_path(other, table), table, table_content.content(other, table))
    return Beside(f"{table.name}__beside", upgrade.state, since, ahead, rows)


def columns(settings: Settings, table: Table) -> dict[str, str]:
    """Returns the columns on disk and their types; none before the table is made."""
    return {f["name"]: _type(f["type"]) for f in delta_tables.fields(table_path(settings, table))}


def _input(catalog: Catalog, name: str) -> str:
    source = catalog.sources.get(name)
    return f"{name} ({source.label})" if source else name


def _type(given: str | Mapping) -> str:
    """Returns a type of Delta's schema as SQL writes it."""
    if isinstance(given, str):
        return given
    if given["type"] == "struct":
        fields = ", ".join(f"{f['name']}: {_type(f['type'])}" for f in given["fields"])
        return f"struct<{fields}>"
    if given["type"] == "array":
        return f"array<{_type(given['elementType'])}>"
    return f"map<{_type(given['keyType'])}, {_type(given['valueType'])}>"
