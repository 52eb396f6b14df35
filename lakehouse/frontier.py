"""What is known about every commit and verdict: the journals, the frontier, the ledger tables.

Each micro-batch or bounded run that writes a table leaves one line in the table's journal, after its rows and before
Spark's own checkpoint: a line therefore vouches for rows that are in the table. The ledger tables `_commits` and
`_certificates` (Delta) hold the same for people and queries.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import portalocker

from lakehouse.settings import Settings
from lakehouse.table import Table

LEDGER = "_ledger"
NOTHING = -1  # the version of a bounded commit that found nothing to rewrite
Role = Literal["live", "bounded", "snapshot"]
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
    arrived: int = 0  # rows that entered (window tables: pairs of row and window)
    late: int = 0
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
        """Rows that the transformation left out (stateless tables)."""
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


class Journal:
    """The journal of one table: `<root>/_ledger/<table>.jsonl`, one Commit a line, oldest first."""

    def __init__(self, settings: Settings, table: Table) -> None:
        self.path = settings.root / LEDGER / f"{table.name}.jsonl"

    def append(self, commit: Commit) -> None:
        """Adds the line and has it on disk when it returns."""
        append_line(self.path, _encoded(commit))

    def __iter__(self) -> Iterator[Commit]:
        """Newest first; a batch that was replayed appears once."""
        seen: set[tuple[str, int, int]] = set()
        for line in lines_backwards(self.path):
            commit = _decoded(line)
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
        for line in lines_backwards(self.path):
            if '"late":0,' not in line or '"role":"bounded"' in line:
                yield _decoded(line)

    def before(self, generation: int, batch: int) -> Commit | None:
        """The last live commit before that batch: what a batch starts from, the same when it is replayed."""
        return next((c for c in self.live() if (c.generation, c.batch) < (generation, batch)), None)


def frontier(settings: Settings, table: Table) -> datetime | None:
    """How far the table is complete: no row behind it is still to come from the stream. None before the first commit."""
    return next((c.frontier for c in Journal(settings, table).live() if c.frontier), None)


def append_line(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        torn = size > 0 and file.read(1) != b"\n"  # a crash while writing: closed here, left out when read
        file.write((b"\n" if torn else b"") + text.encode() + b"\n")
        os.fsync(file.fileno())


def lines_backwards(path: Path, block: int = 1 << 16) -> Iterator[str]:
    """The lines of JSON objects of a file, last first; a torn one (a crash while writing) is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        position, rest = file.seek(0, os.SEEK_END), b""
        while position:
            step = min(block, position)
            position -= step
            file.seek(position)
            rest, *parts = (file.read(step) + rest).split(b"\n")
            yield from (p.decode() for p in reversed(parts) if p.endswith(b"}"))
        if rest.endswith(b"}"):
            yield rest.decode()


def flush(settings: Settings, tables: Iterable[Table]) -> int:
    """Copies what is new in the journals into the Delta table `_commits`; returns how many lines.

    Idempotent: the position reached in each journal is recorded in the same Delta commit.
    """
    ledger = settings.root / LEDGER
    if not ledger.is_dir():
        return 0
    with (ledger / ".flush.lock").open("a") as file:  # two at once would both copy the lines behind one position
        portalocker.lock(file, portalocker.LOCK_EX)
        return _flush(ledger / "_commits", settings, tables)


def _flush(path: Path, settings: Settings, tables: Iterable[Table]) -> int:
    from deltalake import CommitProperties, Transaction

    known = _delta(path)
    rows, reached = [], []
    for table in tables:
        journal = Journal(settings, table).path
        app = f"journal:{table.name}"
        position = (known.transaction_version(app) or 0) if known else 0
        size = journal.stat().st_size if journal.exists() else 0
        if size <= position:
            continue
        with journal.open("rb") as file:
            file.seek(position)
            whole = file.read(size - position).rpartition(b"\n")[0]
        rows += [json.loads(line) for line in whole.decode().splitlines()]
        reached.append(Transaction(app, position + len(whole) + 1))
    if rows:
        _append(path, rows, Commit, CommitProperties(app_transactions=reached))
    return len(rows)


def certify(settings: Settings, certificates: Iterable[Certificate]) -> None:
    """Records the verdicts in the Delta table `_certificates`."""
    rows = [json.loads(_encoded(c)) for c in certificates]
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
    given = {f.name: row[f.name] for f in fields(Certificate)}
    given["inputs"] = json.loads(str(given["inputs"]))
    given["examples"] = tuple(json.loads(str(given["examples"])))
    for name in ("start", "end", "at", "frontier"):
        given[name] = given[name] and datetime.fromisoformat(str(given[name])).astimezone(UTC)
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
    write_deltalake(str(path), pa.Table.from_pylist(flat, schema), mode="append", commit_properties=properties)


def _encoded(value: Commit | Certificate) -> str:
    return json.dumps(asdict(value), default=lambda o: o.isoformat(), separators=(",", ":"))


def _decoded(line: str) -> Commit:
    given = json.loads(line)
    for name in ("at", "watermark", "frontier", "late_from", "late_to", "start", "end"):
        given[name] = given.get(name) and datetime.fromisoformat(given[name])
    given["heads"] = {p: (datetime.fromisoformat(e), datetime.fromisoformat(a)) for p, (e, a) in given["heads"].items()}
    return Commit(**given)
