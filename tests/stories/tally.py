"""What occurred in stories, counted on what was stored and not on what was drawn: a story that disturbs nothing shows nothing."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import get_args

from deltalake import DeltaTable

from lakehouse.stream.strategy import Strategy
from lakehouse.testing import COMMIT_POINTS, Stage
from stories.story import Event, Story

DISTURBANCES = (
    "late rows",
    "duplicates",
    "disorder",
    "a lagging partition",
    "an idle partition",
    "a silent topic",
    "input cut into more micro-batches than it had commits",
    "quarantined rows",
    "a resume",
    *(
        f"{who} crashed at {point}"
        for who in ("ingest", "derived query")
        for point in COMMIT_POINTS
    ),
)
COMPARED = "rows compared"
DELETED = "a commit log deleted"
EARLY = "event times before 1970"
ENGINES = tuple(f"filled by {name}" for name in get_args(Strategy))


def occurred(stage: Stage, story: Story, ingest: str, derived: Iterable[str]) -> Counter[str]:
    """Which of the disturbances a story had, each once."""
    catalog = stage.session.catalog
    record = catalog.table(ingest)
    commits = list(stage.session.commit_log(record).by_stream())
    followers = [catalog.table(name) for name in derived]
    lives = {t.name: list(stage.session.commit_log(t).by_stream()) for t in followers}
    found = {
        "late rows": any(c.late for commit_log in lives.values() for c in commit_log),
        "duplicates": len(set(story.events)) < len(story.events),
        "disorder": any(_behind(batch.events) for batch in story.batches),
        "a lagging partition": any(len(c.heads) > 1 for c in commits) and _lags(story),
        "an idle partition": any(
            _is_left_behind(c.frontier, c.heads.values(), record.delay) for c in commits
        ),
        "a silent topic": any(not c.arrived for c in commits[1:]),  # each story ends with silence
        "input cut into more micro-batches than it had commits": any(
            len(lives[t.name]) > len(commits)
            for t in followers
            if catalog.driving_input(t) == record
        ),
        "quarantined rows": any(c.quarantined for c in commits),
        "a resume": stage.resumed > 0,
    }
    for (table, point), times in stage.crashes.items():
        who = "ingest" if table == ingest else "derived query"
        found[f"{who} crashed at {point}"] = times > 0
    return Counter(name for name, did in found.items() if did)


def stored_offsets(stage: Stage, ingest: str) -> dict[tuple[str, int], list[int]]:
    """Of each partition of each source the offsets that are in the ingest table and its quarantine, in order."""
    offsets: dict[tuple[str, int], list[int]] = {}
    table = stage.session.catalog.table(ingest)
    for path in (stage.session.path(table), stage.session.path(table, "quarantine")):
        for arrival in DeltaTable(str(path)).to_pyarrow_table(columns=["_arrival"])["_arrival"]:
            known = arrival.as_py()
            offsets.setdefault((known["topic"], known["partition"]), []).append(known["offset"])
    return {where: sorted(found) for where, found in offsets.items()}


def missing(tally: Counter[str]) -> list[str]:
    """What should have occurred in a run of stories, and did not: such a run shows nothing."""
    return [name for name in (*DISTURBANCES, DELETED, COMPARED) if not tally[name]]


def left_out(occurred: Counter[str], names: Iterable[str], suite: str) -> list[str]:
    """Which of these, of which each should have come up in many stories of a suite, did not."""
    return [f"{name} ({suite})" for name in names if not occurred[name]]


def assert_nothing_is_vacuous(tally: Counter[str]) -> None:
    assert not missing(tally), (
        f"never occurred: {', '.join(missing(tally))}; what did: {dict(tally)}"
    )


def _behind(events: Sequence[Event]) -> bool:
    """Whether an event of a partition comes after one that is later than it."""
    of_partition = [
        [e.at for e in events if e.partition == p] for p in {e.partition for e in events}
    ]
    return any(later < earlier for times in of_partition for earlier, later in pairwise(times))


def _lags(story: Story) -> bool:
    """Whether, after some batch, one partition is read a batch or more less far than the other."""
    heads: dict[int, int] = {}
    for batch in story.batches:
        for event in batch.events:
            heads[event.partition] = max(heads.get(event.partition, 0), event.at)
        if len(heads) > 1 and max(heads.values()) - min(heads.values()) > 10:
            return True
    return False


def _is_left_behind(frontier, heads: Iterable[Sequence], delay: timedelta) -> bool:
    """Whether the watermark went past what its slowest partition allows: that partition was taken for idle."""
    moments = [head[0] for head in heads]
    return bool(moments) and frontier is not None and frontier > min(moments) - delay
