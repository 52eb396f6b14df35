"""Lines of a commit log, made again from the table's own log: of micro-batches and batch runs that `_commits` does not know.

Each commit notes its batch, inputs and watermark; the rows of an ingest table show how far each
partition of a topic had come. How many rows came late, what these missed, and how long a
micro-batch took is not known.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from lakehouse.declare.catalog import Catalog, load
from lakehouse.declare.columns import ARRIVAL, INGESTION
from lakehouse.declare.inputs.changes import WHOLE
from lakehouse.declare.table import Table
from lakehouse.paths import within
from lakehouse.ranges import BEGINNING, parse_instant
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoint_files
from lakehouse.watermarks import Holders


def unknown(
    settings: Settings, table: Table, batches: set[tuple[int, int]], after: int
) -> Iterator[tuple[int, dict, list]]:
    """Later commits of the table's micro-batches that have no line, and will get none: version, what they noted, their files.

    The last micro-batch has no line yet if it was cut off before that; it is run again unless Spark
    knows it as done.
    """
    of_stream = [
        each
        for each in _commits(settings, table, after)
        if each[1].get("app", "").startswith(f"{table.name}:stream:")
    ]
    for place, (version, noted, actions) in enumerate(of_stream):
        key = (int(noted["app"].rpartition(":")[2]), noted["batch"])
        checkpoint = checkpoint_files.folder_of(settings, table, key[0])
        if key not in batches and (
            place < len(of_stream) - 1 or key[1] in checkpoint_files.done(checkpoint)
        ):
            yield version, noted | {"generation": key[0]}, actions


def _commits(settings: Settings, table: Table, after: int) -> Iterator[tuple[int, dict, list]]:
    """The commits later than that version, oldest first: version, what they noted, their actions."""
    path = table_path(settings, table)
    for version in delta_log.versions(path):
        if version > after:
            actions = delta_log.actions(path, version) or []
            yield version, _noted(actions), actions


def _rows(actions: list[dict]) -> int:
    stats = (
        json.loads(action["add"].get("stats") or "{}") for action in actions if "add" in action
    )
    return sum(each.get("numRecords", 0) for each in stats)


def _at(noted: dict) -> datetime:
    return datetime.fromtimestamp(noted["at"] / 1000, UTC)


def _noted(actions: list[dict]) -> dict:
    info: dict = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    try:
        noted = json.loads(info.get("userMetadata") or "{}")
    except ValueError:  # somebody else's
        return {}
    return noted | {"at": info.get("timestamp", 0)} if isinstance(noted, dict) else {}


def rebuilt(
    settings: Settings, table: Table, kept: list[Commit], rest: list[Commit]
) -> list[Commit]:
    """Lines that only the table's own log knows, oldest first.

    `kept` are sound and older than all that is missing.
    """
    lines = [commit for commit in (*kept, *rest) if commit.role == "stream"]
    batches = {(commit.generation, commit.batch) for commit in lines}
    after = max((commit.version for commit in kept), default=-1)
    catalog = load(settings)
    made: list[Commit] = []
    for version, noted, actions in unknown(settings, table, batches, after):
        before = max(
            (c for c in (*lines, *made) if c.version < version),
            key=lambda c: (c.version, c.at),
            default=None,
        )
        made.append(_line(settings, catalog, table, before, version, noted, actions))
    # the watermark of a row table's line is where the table stood before
    if table.kind.is_row_by_row:
        later = [*made[1:], next((c for c in lines if made and c.version > made[-1].version), None)]
        made = [
            replace(c, frontier=then.watermark) if then else c
            for c, then in zip(made, later, strict=False)
        ]
    return sorted(
        [*made, *_batch(settings, table, {c.version for c in (*kept, *rest)}, after)],
        key=lambda c: c.at,
    )


def _batch(settings: Settings, table: Table, known: set[int], after: int) -> Iterator[Commit]:
    for version, noted, actions in _commits(settings, table, after):
        if version not in known and noted.get("app", "").startswith("batch:") and "range" in noted:
            start, end = map(parse_instant, noted["range"].strip("[)").split(", "))
            yield Commit(
                table=table.name,
                role="batch",
                generation=0,
                batch=0,
                version=version,
                at=_at(noted),
                start=start,
                end=end,
                code_version=noted["code_version"],
                written=_rows(actions),
                inputs=noted["inputs"],
            )


def _line(
    settings: Settings,
    catalog: Catalog,
    table: Table,
    before: Commit | None,
    version: int,
    noted: dict,
    actions: list[dict],
) -> Commit:
    written = _rows(actions)
    quarantined = _quarantined(settings, catalog, table, noted)
    stood = before.frontier if before else None
    mark = parse_instant(noted["watermark"]) if noted.get("watermark") else stood
    frontier = parse_instant(noted["frontier"]) if noted.get("frontier") else mark
    commit = Commit(
        table=table.name,
        role="stream",
        generation=noted["generation"],
        batch=noted["batch"],
        version=version,
        at=_at(noted),
        code_version=noted["code_version"],
        arrived=written + quarantined,
        quarantined=quarantined,
        written=written,
        watermark=mark,
        frontier=frontier,
        inputs=noted["inputs"],
    )
    return (
        _with_heads(settings, catalog, table, commit, before, actions)
        if table.kind.reads_sources
        else commit
    )


def _with_heads(
    settings: Settings,
    catalog: Catalog,
    table: Table,
    commit: Commit,
    before: Commit | None,
    actions: list[dict],
) -> Commit:
    """How far each partition of a topic (and each value in it) had come, and the frontier, as `ingest.ingest_batch` has them."""
    from lakehouse.storage.log import latest_times

    found = latest_times.of_commit(table, table_path(settings, table), actions)
    sources = catalog.sources_of(table).values()
    idle = {source.address: source.idle_timeout for source in sources if not source.is_history}
    partitions = {
        f"{topic}-{partition}": idle[topic]
        for topic in sorted(commit.inputs.keys() & idle.keys())
        for partition in commit.inputs[topic]
    }
    holders = Holders(partitions, idle, table.watermark_by)
    named = {f"{topic}-{number}": moment for (topic, number), moment in found.partitions.items()}
    latest = {key: moment for key, moment in named.items() if key in partitions}
    if table.event_time == INGESTION and latest and found.at:
        latest = dict.fromkeys(partitions, found.at)
    latest |= holders.named(found.values)
    heads = holders.heads(before.heads) if before else {}
    now = holders.advanced(heads, latest, found.at or commit.at)
    mark = commit.watermark or BEGINNING
    return replace(
        commit,
        frontier=holders.watermark(mark, now, table.delay),
        heads={key: (head.event_time, head.active) for key, head in now.items()},
        readings=_readings(
            {s.address for s in sources if s.keys}, before, table_path(settings, table), actions
        ),
    )


def _readings(
    topics: set[str], before: Commit | None, path: Path, actions: list[dict]
) -> dict[str, tuple[str, str]]:
    """Which readings of databases' tables there were up to a commit of these files, as far as the rows have their position."""
    import pyarrow.parquet as pq

    known = dict(before.readings) if before else {}
    added = (action["add"]["path"] for action in actions if "add" in action)
    for file in added if topics else ():
        stored = pq.ParquetFile(within(path, unquote(file)))
        if "position" not in stored.schema_arrow.names:
            continue
        for row in stored.read(columns=["position", ARRIVAL]).to_pylist():
            topic, position = row[ARRIVAL]["topic"], row["position"]
            if topic in topics and position.startswith(WHOLE):
                positions = [*known.get(topic, ()), position]
                known[topic] = min(positions), max(positions)
    return known


def _quarantined(settings: Settings, catalog: Catalog, table: Table, noted: dict) -> int:
    """Rows that the micro-batch quarantined: its commit of that name in the side table."""
    if not table.kind.has_partitions:
        return 0
    path = table_path(settings, table, "quarantine")
    for version in reversed(delta_log.versions(path)):
        actions = delta_log.actions(path, version) or []
        note = _noted(actions)
        if (note.get("app"), note.get("batch")) == (noted["app"], noted["batch"]):
            return _rows(actions)
    return 0
