"""What happens to the input of a table and to the queries that read it, as data that Hypothesis draws and shrinks.

Hypothesis draws the first of all choices first, and shrinks towards it. So the nastiest choice comes first: the very first
story has late rows, duplicates, disorder, a lagging and an idle partition, and a crash at every point.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hypothesis import strategies as st

from lakehouse.testing import COMMIT_POINTS

# stories begin two hours later, at a midnight of Berlin before its clocks change
START = datetime(2026, 3, 28, 21, tzinfo=UTC)
# of other stories: in the last minutes of 1969, and in a year in which no zone had its present offset
STARTS = (
    START,
    datetime(1969, 12, 31, 21, 59, 45, tzinfo=UTC),
    datetime(1800, 2, 28, 22, tzinfo=UTC),
)
BEGIN = 7200  # seconds: what is late by more than an hour still lies behind the beginning of time
PARTITIONS = (0, 1)
IDLE_AFTER = 60  # seconds of silence, more than any source of the suites waits for a partition


@dataclass(frozen=True, slots=True)
class Event:
    """Seconds of event time, and what it is about."""

    at: int
    key: int
    partition: int
    value: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of an ingest table."""

    events: tuple[Event, ...]
    junk: int = 0  # messages that cannot be parsed
    crash: str | None = None  # the commit point at which it crashes, to be resumed
    silence: int = 0  # seconds that pass before it comes
    quiet: int = 0  # seconds without a message before it, which the ingest table notes


@dataclass(frozen=True, slots=True)
class Story:
    """What happens to one ingest table and to the queries that read it."""

    batches: tuple[Batch, ...]
    files: int = 1_000  # how many files of its input a derived query reads at a time
    # of each derived query, in its first life and in its last
    crashes: tuple[str | None, str | None] = (
        None,
        None,
    )
    early: int = 0  # the derived queries also run after that many batches
    tables: tuple[str, ...] = ()  # which derived tables take part; none: all
    start: datetime = START  # from which the seconds of its events count
    deletes: int = 1  # the seed of the moments at which commit logs are deleted; 0: at none

    @property
    def is_early(self) -> bool:
        """Whether its event times are earlier than sources take by default."""
        return self.start < START

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch.events]


@st.composite
def stories(
    draw: st.DrawFn,
    tables: Sequence[str] = (),
    most: int = 3,
    starts: Sequence[datetime] = STARTS,
) -> Story:
    """A story; of `tables`, if they are named, it chooses up to `most` to take part, the first of them more often."""
    clock, batches = BEGIN, []
    for number in range(draw(st.sampled_from((3, 2, 4)))):
        events: list[Event] = []
        for place in range(draw(st.sampled_from((6, 3, 10, 1)))):
            clock += draw(st.sampled_from((3, 6, 1, 0)))
            # every second event is nasty by choice, the others are on time by choice: all late alike were late to nothing
            behind = draw(st.sampled_from((4000, 40, 12, 4, 3, 0) if place % 2 else (0, 1, 3, 12)))
            key, value = draw(st.sampled_from((1, 2))), draw(st.integers(-90, 200))
            event = Event(
                clock - behind, key, draw(st.sampled_from((place % 2, 1 - place % 2))), value
            )
            events += [event] * draw(st.sampled_from((2, 1, 1, 1)))
        if draw(st.sampled_from((True, False))):
            events = draw(st.permutations(events[::-1]))
        points = (
            COMMIT_POINTS[number % len(COMMIT_POINTS) :]
            + COMMIT_POINTS[: number % len(COMMIT_POINTS)]
        )
        junk, crash = draw(st.sampled_from((1, 0, 2))), draw(st.sampled_from((*points, None)))
        batches.append(Batch(tuple(events), junk, crash))
    batches = _lagging(batches, draw(st.sampled_from((1, 0, 2))))
    batches = _idle(batches, draw(st.sampled_from((len(batches) - 1, len(batches), 1))))
    batches = _quiet(batches, draw(st.sampled_from((20, 0, 200))))
    return Story(
        tuple(batches),
        draw(st.sampled_from((1, 2, 1_000))),
        (
            draw(st.sampled_from(("quarantine", "begin", None))),
            draw(st.sampled_from((*COMMIT_POINTS[1:], None))),
        ),
        draw(st.sampled_from((len(batches) - 1, 1, 0))),
        tuple(draw(st.lists(st.sampled_from(tables), min_size=1, max_size=most, unique=True)))
        if tables
        else (),
        draw(st.sampled_from(starts)),
        draw(st.sampled_from((1, 2, 3, 0))),
    )


def _lagging(batches: Sequence[Batch], by: int) -> list[Batch]:
    """The same events; those of the second partition come `by` micro-batches later, as in a catch-up."""
    moved: list[list[Event]] = [[] for _ in range(len(batches) + by)]
    for number, batch in enumerate(batches):
        for event in batch.events:
            moved[number + by * event.partition].append(event)
    beside = [*batches, *[Batch(())] * by]
    return [
        replace(old, events=tuple(events))
        for old, events in zip(beside, moved, strict=True)
        if events or old.junk
    ]


def _idle(batches: Sequence[Batch], since: int) -> list[Batch]:
    """The second partition is silent from batch `since` on, for longer than its source waits for it, until the last batch."""
    told = list(batches)
    for number in range(since, len(told)):
        last = number == len(told) - 1
        kept = tuple(e if last else replace(e, partition=0) for e in told[number].events)
        told[number] = replace(told[number], events=kept, silence=IDLE_AFTER)
    return told


def _quiet(batches: Sequence[Batch], seconds: int) -> list[Batch]:
    """The topic is silent before the last batch, and its event time goes on by so much."""
    return [*batches[:-1], replace(batches[-1], quiet=seconds)] if len(batches) > 1 else [*batches]


def _in_order(count: int = 24, step: int = 2) -> tuple[Batch, ...]:
    events = [Event(BEGIN + step * n, 1 + n % 2, n // 2 % 2, 20 + 3 * n) for n in range(count)]
    return tuple(Batch(tuple(events[n : n + 8])) for n in range(0, count, 8))


def _late(batches: tuple[Batch, ...], by: int = 4000) -> tuple[Batch, ...]:
    """The first event of each batch but the first comes that much too late."""
    first, *others = batches
    return (
        first,
        *(
            replace(b, events=(replace(b.events[0], at=b.events[0].at - by), *b.events[1:]))
            for b in others
        ),
    )


def _shuffled(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    return tuple(replace(b, events=b.events[::-1]) for b in batches)


def _twice(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    return tuple(replace(b, events=(*b.events, *b.events[::3])) for b in batches)


def _crashing(batches: tuple[Batch, ...], points: Sequence[str]) -> tuple[Batch, ...]:
    return tuple(replace(b, crash=points[n % len(points)], junk=1) for n, b in enumerate(batches))


def _everything(batches: tuple[Batch, ...], points: Sequence[str]) -> tuple[Batch, ...]:
    nasty = _lagging(_crashing(_twice(_shuffled(_late(batches))), points), 1)
    return tuple(_quiet(_idle(nasty, 3), 20))


PLAIN = _in_order()
ALL_AT_ONCE = Story(_everything(_in_order(32), COMMIT_POINTS), 1, ("rows", "commit_log"), 2)
EXAMPLES = {
    "all at once": ALL_AT_ONCE,
    "crashes first and last": replace(ALL_AT_ONCE, crashes=("begin", "quarantine")),
    "late rows": Story(_late(PLAIN)),
    "rows late by a little": Story(_late(PLAIN, 25), early=1),
    "duplicates": Story(_twice(PLAIN)),
    "disorder": Story(_shuffled(PLAIN)),
    "a lagging partition": Story(tuple(_lagging(PLAIN, 1))),
    "an idle partition": Story(tuple(_idle(_in_order(32), 1))),
    "a silent topic": Story(tuple(_quiet(PLAIN, 40)), early=2),
    "cut file by file": Story(PLAIN, files=1),
    "messages that cannot be parsed": Story(tuple(replace(b, junk=2) for b in PLAIN)),
    "a resume": Story(PLAIN, early=2),
} | {
    f"a crash at {point}": Story(_crashing(PLAIN, [point]), crashes=(point, point), early=2)
    for point in COMMIT_POINTS
}
"""Each disturbance alone, and all of them at once; the first two have all of them, and a crash at each point."""

ONCE_FAILED = {
    "operators": (
        # found by seed 747220: the one table of keys had no row, and the one that reads it never began
        Story(
            (
                Batch((Event(3218, 1, 1, 9), Event(7203, 1, 0, -39), Event(3212, 1, 1, 61))),
                Batch((Event(7222, 2, 0, 161), Event(7221, 2, 1, 10)), quiet=200),
            ),
            2,
            ("begin", "rows"),
            tables=("keyed_tables", "keyed_of_keyed"),
        ),
        # found by seed 720000000: before 1970 days are closed by steps, and the input goes on in time by less than a day
        Story(
            (Batch((Event(7203, 1, 0, 43), Event(7209, 1, 1, 166))),),
            tables=("days_of_a_zone",),
            start=STARTS[2],
        ),
        # found by seed 747220: no window held a row, so there is nothing to compare of windows of them
        Story(
            (
                Batch((Event(7203, 1, 0, -60),)),
                Batch((Event(7205, 2, 0, 187),), silence=60, quiet=200),
            ),
            2,
            ("begin", "quarantine"),
            tables=("windows_of_windows",),
        ),
        # found by seed 775109: an hour behind the last event its partition was still open, by the delay; and two clicks of
        # one instant tied
        Story(
            (
                Batch((Event(7203, 1, 0, -82), Event(7203, 2, 0, -87))),
                Batch((Event(7203, 2, 1, 31), Event(7191, 1, 1, -64)), silence=60, quiet=200),
            ),
            2,
            (None, "rows"),
            tables=("updated_windows", "keyed_tables"),
        ),
    )
}
"""Stories that once failed, by suite."""
