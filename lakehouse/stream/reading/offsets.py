"""The offsets of an ingest table: they continue from commit to commit, and each is in the table or its quarantine once.

`_commit_log/<table>.topics.json` keeps the ids of its topics (a topic that was deleted and created
again has another one), the topics that are read from their beginning again, the starts of topics with a history, and
the gaps that someone has declared.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakehouse.declare.table import Table
from lakehouse.errors import CommitError, TopicError
from lakehouse.logs import warn_once
from lakehouse.runtime import kafka_topics
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file
from lakehouse.storage.log.commits import Commit

if TYPE_CHECKING:
    from lakehouse.storage.position.checkpoints import Standing, Written

_log = logging.getLogger(__name__)

Offsets = Mapping[str, Mapping[str, int]]  # topic -> partition -> offset


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets of a partition that someone has declared to be lost.

    `until` is the next offset that is read.
    """

    topic: str
    partition: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Topics:
    """The known facts about the topics of an ingest table."""

    ids: Mapping[str, str] = field(default_factory=dict)
    # topics made again: the last micro-batch (generation, batch) of the one before, and when that
    # was declared (ISO 8601 UTC)
    recreated: Mapping[str, tuple[int, int, str]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    # the offsets from which topics with a history were read
    starts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def gaps_of(self, topic: str) -> list[Gap]:
        """Returns the gaps of a topic, in their order."""
        return sorted((g for g in self.gaps if g.topic == topic), key=lambda gap: gap.since)

    def begins(self, topic: str, last: "Written | Commit") -> bool:
        """Returns True if the topic is not the one whose offsets this commit has."""
        after = self.recreated.get(topic)
        return after is not None and (last.generation, last.batch) <= tuple(after[:2])


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker's description of a topic."""

    id: str
    first: Mapping[str, int]  # partition -> offset
    end: Mapping[str, int]  # partition -> the next offset


def known(settings: Settings, table: Table) -> Topics:
    meaning = f"the ids that the topics of {table.name} have now are kept from here on, and gaps that were declared count as gaps"
    return read_value(layout.note(settings, table, "topics.json"), Topics, meaning) or Topics()


def note(settings: Settings, table: Table, topics: Topics) -> None:
    replace_file(layout.note(settings, table, "topics.json"), asdict(topics))


def on_broker(client, topics: Sequence[str]) -> dict[str, Broker]:
    """Returns the broker's description of the topics. Raises AccessError, BrokerError."""
    from confluent_kafka.admin import OffsetSpec

    described = kafka_topics.ids(client, topics)
    partitions = {topic: numbers for topic, (_, numbers) in described.items()}
    first, end = (
        kafka_topics.listed(client, partitions, spec, {})
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    return {topic: Broker(described[topic][0], first[topic], end[topic]) for topic in described}


def ends(client, settings: Settings, described: Mapping[str, tuple[str, list[int]]]) -> Offsets:
    """Returns up to where topics can be read now, by the isolation level of the settings.

    `described`: the topics by `kafka_topics.ids`. Raises BrokerError.
    """
    from confluent_kafka import IsolationLevel
    from confluent_kafka.admin import OffsetSpec

    committed = settings.kafka.get("isolation.level") == "read_committed"
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    partitions = {topic: numbers for topic, (_, numbers) in described.items()}
    return kafka_topics.listed(client, partitions, OffsetSpec.latest(), {"isolation_level": level})


def check_ids(settings: Settings, table: Table, present: Mapping[str, str]) -> None:
    """Keeps the ids of topics that are new to the table.

    Raises TopicError for a topic that is not the one that the table has read.
    """
    before = known(settings, table)
    if nameless := sorted(topic for topic, identity in present.items() if not identity):
        warn_once(
            _log,
            f"table={table.name}, topic={', '.join(nameless)}: the broker gives it no id (it is older than Kafka 2.8), so one "
            "that is deleted and created again is not noticed, unless it has fewer messages than were read",
        )
        present = {topic: identity for topic, identity in present.items() if identity}
    if present.items() <= before.ids.items():
        return
    from lakehouse.storage.position import checkpoints

    standing = checkpoints.standing(settings, table)
    committed = standing.written.topics if standing.written else {}
    if new := sorted(present.keys() - before.ids.keys()):
        starts = before.starts or (standing.written.starts if standing.written else {})
        read = _read_before(settings, table, new, standing)
        before = replace(before, ids={**read, **before.ids}, starts=starts)
    changed = {t: now for t, now in present.items() if before.ids.get(t, now) != now}
    for topic, identity in changed.items():
        if committed.get(topic) != identity:
            raise TopicError(
                f"table={table.name}, topic={topic}, id={identity}: the table has read the topic of id {before.ids[topic]}, "
                "and this is another one of that name, so its offsets mean other messages; `lakehouse topic "
                f"accept-new {table.name}` "
                "accepts it, and reads it from its beginning"
            )
    if changed:
        path = layout.note(settings, table, "topics.json")
        older = (
            f"it has older ids of {', '.join(changed)} than the table's last commit, which counts"
        )
        _log.warning(f"table={table.name}, file={path}: {older}; gaps accepted since are forgotten")
    note(settings, table, replace(before, ids={**before.ids, **present}))


def _read_before(
    settings: Settings, table: Table, topics: Sequence[str], standing: "Standing"
) -> dict[str, str]:
    """Returns the ids of topics by the table's last commit, for topics that the file of the ids does not know (any more)."""
    read = [topic for topic in topics if standing.last and topic in standing.last.inputs]
    if not read:
        return {}
    committed = standing.written.topics if standing.written else {}
    noted = {topic: committed[topic] for topic in read if topic in committed}
    path = layout.note(settings, table, "topics.json")
    lost = f"table={table.name}, file={path}: it is gone, or does not have the ids of {', '.join(read)}"
    unknown = sorted(set(read) - noted.keys())
    what = "they are taken from the table's last commit"
    if unknown:
        what = f"nor does the table's last commit, so {', '.join(unknown)} count as the ones that were read as they are now"
    warn_once(_log, f"{lost}; {what}; accepted gaps are forgotten, and must be accepted again")
    return noted


def start(
    settings: Settings,
    table: Table,
    topics: Sequence[str],
    last: "Written | Commit | None",
    starts: Offsets | None = None,
) -> Offsets:
    """Returns where a table resumes: after its last commit, or at the beginning of a topic that is new or was created again.

    `starts`: beginnings that replace the broker's first offsets. Raises TopicError for a topic that
    is not the one read, CommitError if what comes next is gone, BrokerError.
    """
    by_topic = on_broker(kafka_topics.admin(settings), topics)
    check_ids(settings, table, {topic: each.id for topic, each in by_topic.items()})
    begins = behind(settings, table, last, {})
    for topic in begins.keys() & by_topic.keys():
        _check_there(table, topic, begins[topic], by_topic[topic])
    first = {topic: each.first for topic, each in by_topic.items()} | dict(starts or {})
    return behind(settings, table, last, first)


def behind(
    settings: Settings, table: Table, last: "Written | Commit | None", first: Offsets
) -> Offsets:
    """Returns the offsets after a commit and after the gaps that were declared there.

    Partitions that it had not read have their `first` ones.
    """
    now, begins = known(settings, table), {topic: dict(offsets) for topic, offsets in first.items()}
    if last is None:
        return begins
    for topic, read in last.inputs.items():
        if not now.begins(topic, last):
            begins[topic] = begins.get(topic, {}) | {
                p: past(now.gaps, topic, p, offset) for p, offset in read.items()
            }
    return begins


def past(gaps: Sequence[Gap], topic: str, partition: str, offset: int) -> int:
    """Returns the end of the furthest gap declared to begin at the offset (the topic may have lost more since), or the offset."""
    return max(
        (g.until for g in gaps if (g.topic, g.partition, g.since) == (topic, partition, offset)),
        default=offset,
    )


def outside(gaps: Iterable[Gap], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of a range of a partition that lie in none of its gaps, which come in their order."""
    for gap in gaps:
        if begin < min(gap.since, end):
            yield begin, min(gap.since, end)
        begin = max(begin, gap.until)
    if begin < end:
        yield begin, end


def lost(settings: Settings, table: Table, found: Mapping[str, Broker], last: Commit) -> list[Gap]:
    """Returns the offsets after the last commit that the topics no longer have."""
    now = known(settings, table)
    read = {topic: last.inputs.get(topic, {}) for topic in found if not now.begins(topic, last)}
    return [
        Gap(topic, p, offset, found[topic].first[p])
        for topic, offsets in read.items()
        for p, offset in offsets.items()
        if past(now.gaps, topic, p, offset) < found[topic].first.get(p, 0)
    ]


def declare_lost(settings: Settings, table: Table, gaps: Sequence[Gap]) -> None:
    """Notes gaps that someone has declared, each in place of an older one with the same beginning."""
    before = known(settings, table)
    begin = {(gap.topic, gap.partition, gap.since) for gap in gaps}
    kept = (gap for gap in before.gaps if (gap.topic, gap.partition, gap.since) not in begin)
    note(settings, table, replace(before, gaps=(*kept, *gaps)))


def check_there(client, table: Table, at: Offsets) -> None:
    """Raises CommitError if what comes next is gone, AccessError, BrokerError."""
    for topic, there in on_broker(client, list(at)).items():
        _check_there(table, topic, at[topic], there)


def _check_there(table: Table, topic: str, read: Mapping[str, int], there: Broker) -> None:
    for partition, offset in read.items():
        if offset < there.first.get(partition, 0):
            raise CommitError(
                f"table={table.name}, topic={topic}, partition={partition}, offset={offset}: the table goes on from there, and "
                f"the topic begins with {there.first[partition]}; what is between is lost to the table; "
                "`lakehouse topic accept-gap "
                f"{table.name}` accepts that and goes on; lengthen the retention"
            )


def beyond(table: Table, read: Offsets, end: Offsets) -> str:
    """Returns the fault of a topic that ends before what was read of it; empty if none does.

    A broker that has just started may yet recover the rest.
    """
    for topic, partitions in read.items():
        for partition, offset in partitions.items():
            if offset > (ends := end[topic].get(partition, -1)):
                return (
                    f"table={table.name}, topic={topic}, partition={partition}, offset={offset}: the table has read up to there, "
                    f"and the topic ends with {ends if ends >= 0 else 'none'}, so it has lost messages since; recover the topic, "
                    f"or create it again and accept that by `lakehouse topic accept-new {table.name}`"
                )
    return ""


def declare_recreated(
    settings: Settings, table: Table, present: Mapping[str, str], last: tuple[int, int]
) -> None:
    """Notes that topics of these ids are read from their beginning, after that micro-batch (generation, batch)."""
    before, now = known(settings, table), datetime.now(UTC).isoformat()
    changed = {
        topic: identity
        for topic, identity in present.items()
        if before.ids.get(topic, identity) != identity
    }
    recreated = dict.fromkeys(changed, (*last, now))
    ids, recreated = {**before.ids, **present}, {**before.recreated, **recreated}
    gaps = tuple(gap for gap in before.gaps if gap.topic not in changed)
    kept = {topic: begins for topic, begins in before.starts.items() if topic not in changed}
    note(settings, table, Topics(ids, recreated, gaps, kept))
