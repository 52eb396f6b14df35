"""The certificates in sum: for each table the last verdict, the end of its reconciled range, and the ranges known to differ."""

from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import datetime

from lakehouse.settings import Settings
from lakehouse.storage.delta.delta_tables import NewRows
from lakehouse.storage.disk import layout
from lakehouse.storage.log.certificates import Verdict

GRAVEST: tuple[Verdict, ...] = ("DIFFERENT", "PENDING", "UNVERIFIABLE", "OPEN", "EQUAL")
Span = tuple[datetime, datetime]  # [start, end) as it was recorded
_LAST = 50  # verdicts that are kept one by one
_COUNTS = ["missing", "extra", "changed"]
_COLUMNS = ["table", "start", "end", "verdict", "at", *_COUNTS]


@dataclass(frozen=True, slots=True)
class Found:
    """A difference: the time when it was first found, and the counts of its rows."""

    at: datetime
    rows: str


@dataclass(slots=True)
class Outcomes:
    """The sum of one table's certificates."""

    at: datetime | None = None  # when the last verdict was given
    verdict: Verdict | None = None
    reconciled_until: datetime | None = None  # the latest end of a range that was EQUAL
    different: dict[Span, Found] = field(default_factory=dict)  # DIFFERENT, and not EQUAL since
    counts: Counter[str] = field(default_factory=Counter)  # by verdict
    # ranges whose last verdict is not EQUAL; OPEN does not count
    doubtful: dict[Span, Verdict] = field(default_factory=dict)

    @property
    def in_force(self) -> Verdict | None:
        """Returns the gravest of the last verdicts of all ranges."""
        if self.doubtful:
            return min(self.doubtful.values(), key=GRAVEST.index)
        return "EQUAL" if self.counts["EQUAL"] else self.verdict

    def add(self, verdict: Verdict, span: Span, at: datetime, rows: str = "") -> None:
        """Adds a verdict that is not older than the earlier ones."""
        self.at, self.verdict = at, verdict
        self.counts[verdict] += 1
        if verdict != "OPEN":
            doubtful = self.doubtful.items()
            self.doubtful = {left: given for s, given in doubtful for left in _outside(s, span)}
            self.doubtful |= {span: verdict} if verdict != "EQUAL" else {}
        if verdict == "DIFFERENT":
            # reconciled again together with hours that have closed since: if no more rows differ, it is
            # the same difference
            same = (s for s, d in self.different.items() if (s[0], d.rows) == (span[0], rows))
            again = next(same, None)
            self.different[span] = self.different.pop(again) if again else Found(at, rows)
        if verdict == "EQUAL":
            self.reconciled_until = max(self.reconciled_until or span[1], span[1])
            different = self.different.items()
            self.different = {left: found for s, found in different for left in _outside(s, span)}


def _outside(span: Span, equal: Span) -> list[Span]:
    """Returns the parts of `span` that lie outside of `equal`."""
    parts = [(span[0], min(span[1], equal[0])), (max(span[0], equal[1]), span[1])]
    return [(start, end) for start, end in parts if start < end]


@dataclass(frozen=True, slots=True)
class Given:
    """A verdict as it was given."""

    at: datetime
    table: str
    verdict: Verdict
    span: Span
    rows: str


class Verdicts:
    """The log table of certificates in sum. It grows by a file for each verdict, so no file is read twice.

    `last` has the verdicts given last, the newest at the end.
    """

    def __init__(self, settings: Settings) -> None:
        path = layout.log_table(settings, "_certificates")
        self._certificates = NewRows(path, _COLUMNS, "at")
        self._outcomes: dict[str, Outcomes] = {}
        self.last: deque[Given] = deque(maxlen=_LAST)

    def now(self) -> dict[str, Outcomes]:
        """Returns the outcomes by table, for tables that have a certificate."""
        rows, again = self._certificates.read()
        if again:
            self._outcomes = {}
            self.last.clear()
        for row in rows:
            row |= {name: datetime.fromisoformat(row[name]) for name in ("start", "end", "at")}
        for row in sorted(rows, key=lambda row: row["at"]):
            outcomes = self._outcomes.setdefault(row["table"], Outcomes())
            span = row["start"], row["end"]
            outcomes.add(row["verdict"], span, row["at"], _rows(row))
            self.last.append(Given(row["at"], row["table"], row["verdict"], span, _rows(row)))
        return self._outcomes


def _rows(row: dict) -> str:
    return f"rows {', '.join(f'{name} {row[name]}' for name in _COUNTS)}"
