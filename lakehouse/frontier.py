"""What is known about every commit and verdict: the journals, the frontier, the ledger tables.

Each micro-batch or bounded run that writes a table leaves one line in the table's journal, after its rows and before
Spark's own checkpoint: a line therefore vouches for rows that are in the table. The ledger tables `_commits` and
`_certificates` (Delta) hold the same for people and queries; a journal lets go of what is old (`trimming`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from lakehouse.errors import JobError
from lakehouse.files import alone, append_line, values_backwards
from lakehouse.settings import Settings
from lakehouse.table import Table

LEDGER = "_ledger"
NOTHING = -1  # the version of a bounded commit that found nothing to rewrite
Role = Literal["live", "bounded", "snapshot", "void"]  # void: earlier lines of versions above its own hold no more
Verdict = Literal["EQUAL", "DIFFERENT", "PENDING", "NOT_YET", "UNPROVABLE"]


@dataclass(frozen=True, slots=True)
class Commit:
    """One write of one table. Instants are aware UTC; `inputs` and `heads` are maps as text keys to plain values."""

    table: str
    role: Role
    generation: int
    batch: int
    version: int
    at: datetime
    fingerprint: str
    arrived: int = 0  # live runs: rows that entered (window tables: pairs of row and window)
    late: int = 0  # live runs
    late_from: datetime | None = None  # least and greatest instant of what late rows missed (`event_time.counts`)
    late_to: datetime | None = None
    quarantined: int = 0
    written: int = 0
    watermark: datetime | None = None  # in force for this batch
    frontier: datetime | None = None  # the table is complete behind it
    inputs: Mapping[str, object] = field(default_factory=dict)  # offsets of a topic, versions of tables
    heads: Mapping[str, tuple[datetime, datetime]] = field(default_factory=dict)  # record: partition -> Head
    start: datetime | None = None  # bounded runs: the range
    end: datetime | None = None
    seconds: float = 0.0

    @property
    def filtered(self) -> int:
        """Rows that the transformation left out (live runs of stateless tables)."""
        return self.arrived - self.late - self.quarantined - self.written


@dataclass(frozen=True, slots=True)
class Certificate:
    """The recorded verdict over a range of one table."""

    table: str
    start: datetime
    end: datetime
    verdict: Verdict
    rows_live: int
    rows_bounded: int
    rows_by_bounded_runs: int  # rows of the range that a bounded run wrote: they prove nothing about the stream
    digest_live: str
    digest_bounded: str
    frontier: datetime | None
    version: int
    inputs: Mapping[str, object]
    fingerprint: str
    at: datetime
    seconds: float
    missing: int = 0
    extra: int = 0
    changed: int = 0
    examples: tuple[str, ...] = ()
    detail: str = ""
    cause: str = ""  # of a difference, as far as it can be known (`causes`)


@dataclass(frozen=True, slots=True)
class Seam:
    """A bounded run computes the table behind the `frontier`, whole partitions; its live run all that lies ahead of it."""

    frontier: datetime
    input: str
    version: int  # of the input: the first that the live run reads
    until: int  # of the input: the one that was complete up to the frontier
    inputs: Mapping[str, object]  # what the input had read by then: offsets of topics, versions of tables
    fingerprint: str
    at: datetime


class Journal:
    """The journal of one table: `<root>/_ledger/<table>.jsonl`, one Commit a line, oldest first.

    Once it was trimmed, its first line says how far all positions in it have moved.
    """

    def __init__(self, settings: Settings, table: Table) -> None:
        self.path = settings.root / LEDGER / f"{table.name}.jsonl"

    def append(self, commit: Commit) -> None:
        """Adds the line and has it on disk when it returns."""
        with self.writing():
            append_line(self.path, encoded(commit))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time: who trims the journal replaces the file."""
        with alone(self.path.with_suffix(".lock")):
            yield

    def __iter__(self) -> Iterator[Commit]:
        """Newest first; a batch that was replayed appears once, one whose rows were taken back not at all."""
        seen: set[tuple[str, int, int]] = set()
        from lakehouse import journal_repair

        for commit in _holding(journal_repair.readable(self.path)):
            if commit.role == "live":
                batch = (commit.role, commit.generation, commit.batch)
                if batch in seen:
                    continue
                seen.add(batch)
            yield commit

    def live(self) -> Iterator[Commit]:
        return (c for c in self if c.role == "live")

    def rewriting(self) -> Iterator[Commit]:
        """The bounded commits, and the live ones that had late rows; the many others are not even decoded."""
        from lakehouse import journal_repair

        told = ('"role":"bounded"', '"role":"void"')
        return _holding(
            journal_repair.readable(self.path, lambda line: '"late":0,' not in line or any(role in line for role in told))
        )

    def before(self, generation: int, batch: int) -> Commit | None:
        """The last live commit before that batch: what a batch starts from, the same when it is replayed."""
        return next((c for c in self.live() if (c.generation, c.batch) < (generation, batch)), None)


def _holding(commits: Iterable[Commit]) -> Iterator[Commit]:
    """The commits, newest first, without those whose rows the table does not hold any more."""
    limit: float = float("inf")
    for commit in commits:
        if commit.role == "void":
            limit = min(limit, commit.version)
        elif commit.version <= limit:
            yield commit


def frontier(settings: Settings, table: Table) -> datetime | None:
    """How far the table is complete: no row behind it is still to come from the stream. None before the first commit."""
    reached = next((c.frontier for c in Journal(settings, table).live() if c.frontier), None)
    if reached is None and (begun := seam_of(settings, table)):
        return begun.frontier
    return reached


def seam_of(settings: Settings, table: Table) -> Seam | None:
    """Where the table's live run begins, if not with all that its input has (`lakehouse.seam`)."""
    path = seam_path(settings, table)
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text())
        return Seam(**kept | {name: datetime.fromisoformat(kept[name]) for name in ("frontier", "at")})
    except (ValueError, TypeError, KeyError) as err:
        raise JobError(
            f"table={table.name}, file={path}: it holds the seam at which the live run begins, and cannot be read ({err!r}); "
            "restore it from a copy: without it the live run would write what batch runs have written"
        ) from err


def seam_path(settings: Settings, table: Table) -> Path:
    return settings.root / LEDGER / f"{table.name}.seam.json"


def note_dropped(settings: Settings, table: Table, rows: int) -> None:
    """Keeps that Spark dropped rows which the gate had accepted: what it dropped is missing."""
    line = {"at": datetime.now(UTC).isoformat(), "rows": rows}
    append_line(_dropped(settings, table), json.dumps(line))


def dropped_by_spark(settings: Settings, table: Table, since: datetime | None) -> int:
    """How many rows Spark dropped after that instant."""
    lines = values_backwards(_dropped(settings, table), lambda line: (int(line["rows"]), datetime.fromisoformat(line["at"])))
    return sum(rows for rows, at in lines if since is None or at > since)


def _dropped(settings: Settings, table: Table) -> Path:
    return settings.root / LEDGER / f"{table.name}.dropped.jsonl"


def flush(settings: Settings, tables: Iterable[Table]) -> int:
    """Copies what is new in the journals into the Delta table `_commits`; returns how many lines. Trims long journals.

    Idempotent: the position reached in each journal is recorded in the same Delta commit.
    """
    from lakehouse import trimming

    ledger, tables = settings.root / LEDGER, list(tables)
    if not ledger.is_dir():
        return 0
    with alone(ledger / ".flush.lock"):  # two at once would both copy the lines behind one position
        copied = _flush(ledger / "_commits", settings, tables)
        for table in tables:
            trimming.trim(Journal(settings, table))
        return copied


def _flush(path: Path, settings: Settings, tables: Iterable[Table]) -> int:
    from deltalake import CommitProperties, Transaction

    from lakehouse import journal_repair, trimming

    known = _delta(path)
    rows, reached = [], []
    for table in tables:
        journal = Journal(settings, table).path
        app = f"journal:{table.name}"
        position = (known.transaction_version(app) or 0) if known else 0
        journal_repair.mend_if_cut(settings, table, position)
        moved = trimming.shift(journal)
        position = max(position, moved)  # `_commits` was removed: what had been trimmed from the journal by then is not known
        size = journal.stat().st_size + moved if journal.exists() else 0
        if size <= position:
            continue
        with journal.open("rb") as file:
            file.seek(position - moved)
            whole = file.read(size - position).rpartition(b"\n")[0]
        rows += journal_repair.whole_lines(journal, whole)
        reached.append(Transaction(app, position + len(whole) + 1))
    if rows:
        _append(path, rows, Commit, CommitProperties(app_transactions=reached))
    return len(rows)


def certify(settings: Settings, certificates: Iterable[Certificate]) -> None:
    """Records the verdicts in the Delta table `_certificates`."""
    rows = [json.loads(encoded(c)) for c in certificates]
    if rows:
        _append(settings.root / LEDGER / "_certificates", rows, Certificate, None)


def certificates(settings: Settings, table: Table | None = None) -> list[Certificate]:
    """The recorded verdicts, oldest first."""
    known = _delta(settings.root / LEDGER / "_certificates")
    if known is None:
        return []
    rows = known.to_pyarrow_table().sort_by("at").to_pylist()
    return [_certificate(r) for r in rows if table is None or r["table"] == table.name]


def _certificate(row: Mapping[str, object]) -> Certificate:
    given = {f.name: row[f.name] for f in fields(Certificate) if row.get(f.name) is not None}
    given["inputs"] = json.loads(str(given["inputs"]))
    given["examples"] = tuple(json.loads(str(given["examples"])))
    for name in ("start", "end", "at", "frontier"):
        given[name] = datetime.fromisoformat(str(given[name])).astimezone(UTC) if name in given else None
    return Certificate(**given)  # type: ignore[arg-type]


def _delta(path: Path):
    from deltalake import DeltaTable

    return DeltaTable(str(path)) if (path / "_delta_log").exists() else None


def _append(path: Path, rows: list[dict], kind: type, properties) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    types = {int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(f.name, types.get(f.type, pa.string())) for f in fields(kind)])
    flat = [{k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_deltalake(  # merged: a ledger that an earlier version began may have fewer columns
        str(path), pa.Table.from_pylist(flat, schema), mode="append", schema_mode="merge", commit_properties=properties
    )


def encoded(value: Commit | Certificate) -> str:
    return json.dumps(asdict(value), default=lambda o: o.isoformat(), separators=(",", ":"))


def decoded(line: str) -> Commit:
    given = json.loads(line)
    for name in ("at", "watermark", "frontier", "late_from", "late_to", "start", "end"):
        given[name] = given.get(name) and datetime.fromisoformat(given[name])
    given["heads"] = {p: (datetime.fromisoformat(e), datetime.fromisoformat(a)) for p, (e, a) in given["heads"].items()}
    return Commit(**given)
