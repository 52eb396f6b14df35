"""The certificates in sum: of each table the last verdict, how far it is proven, which ranges are known to differ."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from lakehouse.frontier import LEDGER, Verdict
from lakehouse.settings import Settings

Span = tuple[datetime, datetime]  # [start, end) as it was recorded
_COLUMNS = ["table", "start", "end", "verdict", "at"]


@dataclass(slots=True)
class Proofs:
    """What the certificates of one table say together."""

    at: datetime | None = None  # when the last verdict was given
    verdict: Verdict | None = None
    proven_until: datetime | None = None  # the latest end of a range that was EQUAL
    different: set[Span] = field(default_factory=set)  # not yet in a range that was EQUAL since
    counts: Counter[str] = field(default_factory=Counter)  # by verdict

    def add(self, verdict: Verdict, span: Span, at: datetime) -> None:
        """One more, not older than those before."""
        self.at, self.verdict = at, verdict
        self.counts[verdict] += 1
        if verdict == "DIFFERENT":
            self.different.add(span)
        if verdict == "EQUAL":
            start, end = span
            self.proven_until = max(self.proven_until or end, end)
            self.different = {each for each in self.different if each[0] < start or each[1] > end}


class Verdicts:
    """The ledger of certificates, kept in sum: what was read once is not read again, for it grows by a file a verdict."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.root / LEDGER / "_certificates"
        self._delta = None
        self._read: set[str] = set()
        self._proofs: dict[str, Proofs] = {}

    def now(self) -> dict[str, Proofs]:
        """By table, of those that have a certificate."""
        import pyarrow.parquet as pq
        from deltalake import DeltaTable

        if not (self._path / "_delta_log").is_dir():
            return {}
        if self._delta is None:
            self._delta = DeltaTable(str(self._path))
        else:
            self._delta.update_incremental()
        files = set(self._delta.file_uris())
        if not self._read <= files:  # compacted: the same verdicts in other files
            self._read, self._proofs = set(), {}
        if new := sorted(files - self._read):
            rows = pq.read_table(new, columns=_COLUMNS).to_pylist()
            for row in rows:
                row |= {name: datetime.fromisoformat(row[name]) for name in ("start", "end", "at")}
            for row in sorted(rows, key=lambda row: row["at"]):
                proofs = self._proofs.setdefault(row["table"], Proofs())
                proofs.add(row["verdict"], (row["start"], row["end"]), row["at"])
            self._read = files
        return self._proofs
