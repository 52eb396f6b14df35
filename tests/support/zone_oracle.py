"""Windows of a zone by plain `zoneinfo`: a walk through its instants that looks at the clock each five minutes.

Changes of clocks since 1990 fall on such instants in the zones that are told here.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

STEP = timedelta(minutes=5)
MONDAY = datetime(1970, 1, 5)
ZONES = (
    *("Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns", "Asia/Kathmandu"),
    *("America/Sao_Paulo", "Africa/Casablanca", "Antarctica/Troll", "America/Havana"),
)


class Walk:
    """The windows of a zone that hold an instant from `start` to `end`, by what its clock has shown up to it."""

    def __init__(self, zone: str, start: datetime, end: datetime) -> None:
        self._zone = ZoneInfo(zone)
        self._instants = [start]
        while self._instants[-1] < end:
            self._instants.append(self._instants[-1] + STEP)
        self._latest: dict[datetime, datetime] = {}  # five minutes -> what was shown by then
        self._first: dict[datetime, datetime] = {}  # what was shown -> when first
        latest = datetime.min
        for instant in self._instants:
            shown = self._shown(instant)
            while latest < shown:
                latest = max(latest + STEP, shown - timedelta(days=30))
                self._first[latest] = instant
            self._latest[instant] = latest

    def _shown(self, instant: datetime) -> datetime:
        return instant.astimezone(self._zone).replace(tzinfo=None)

    def windows(
        self, instant: datetime, size: timedelta, slide: timedelta, offset: timedelta
    ) -> set[tuple[datetime, datetime]]:
        step = instant - (instant - self._instants[0]) % STEP
        if self._latest[step] == self._shown(step):
            latest = self._shown(step) + (instant - step)
        else:  # the clock was set back: all of what it showed up to then
            latest = self._latest[step] + STEP - timedelta(microseconds=1)
        start = latest - (latest - MONDAY - offset) % slide
        held = set()
        while start + size > latest:
            held.add((self._first[start], self._first[start + size]))
            start -= slide
        return held


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
