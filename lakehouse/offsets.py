"""The offsets of an ingest table: they join on from commit to commit, and each is in the table or its quarantine once.

`_ledger/<table>.topics.json` keeps the ids of its topics (a topic that was deleted and created again has another one), which of
them begin at their beginning, and which gaps someone has declared.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from lakehouse.errors import BrokerError, CommitError, TopicError
from lakehouse.files import read_value, replace_file
from lakehouse.frontier import LEDGER, Commit
from lakehouse.kafka_options import client_config
from lakehouse.settings import Settings
from lakehouse.table import Table

_EARLIEST = -2  # as Spark writes it
_NO_ID = ("", "None", "AAAAAAAAAAAAAAAAAAAAAA")  # as brokers before 2.8 are answered for
_WITHIN = 30.0  # seconds for an answer of the broker
Offsets = Mapping[str, Mapping[str, int]]  # topic -> partition -> offset


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets of a partition that someone has declared to be lost; `until` is the next that is read."""

    topic: str
    partition: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Topics:
    """What is known of the topics of an ingest table."""

    ids: Mapping[str, str] = field(default_factory=dict)
    # topics made again: the last micro-batch (generation, batch) of the one before, and when that was declared (ISO 8601 UTC)
    anew: Mapping[str, tuple[int, int, str]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    def begins(self, topic: str, last: Commit) -> bool:
        """Whether the topic is another one than that whose offsets this commit has."""
        after = self.anew.get(topic)
        return after is not None and (last.generation, last.batch) <= tuple(after[:2])


@dataclass(frozen=True, slots=True)
class Broker:
    """What the broker says of a topic."""

    id: str
    first: Mapping[str, int]  # partition -> offset
    end: Mapping[str, int]  # partition -> the next offset


def known(settings: Settings, table: Table) -> Topics:
    meaning = f"the ids that the topics of {table.name} have now are kept from here on, and gaps that were declared count as gaps"
    return read_value(_path(settings, table), _decoded, meaning) or Topics()


def _decoded(kept: dict) -> Topics:
    anew = {topic: tuple(after) for topic, after in kept["anew"].items()}
    return Topics(kept["ids"], anew, tuple(Gap(**gap) for gap in kept["gaps"]))


def note(settings: Settings, table: Table, topics: Topics) -> None:
    replace_file(_path(settings, table), asdict(topics))


def _path(settings: Settings, table: Table) -> Path:
    return settings.root / LEDGER / f"{table.name}.topics.json"


def admin(settings: Settings):
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_config(settings) | {"log_level": "0"})


def ids(client, topics: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
    """Topic -> its id, empty of a broker that gives none, and its partitions. Raises BrokerError."""
    from confluent_kafka import KafkaException, TopicCollection

    found = {}
    for topic, future in client.describe_topics(TopicCollection(list(topics)), request_timeout=_WITHIN).items():
        try:
            told = future.result()
        except KafkaException as err:
            raise BrokerError(
                f"topic={topic}: the broker must describe it within {_WITHIN:.0f} s and did not ({err.args[0].str()}); check "
                "that the broker runs and has the topic"
            ) from err
        identity = str(told.topic_id or "")
        found[topic] = "" if identity in _NO_ID else identity, [p.id for p in told.partitions]
    return found


def on_broker(client, topics: Sequence[str]) -> dict[str, Broker]:
    """What the broker says of the topics. Raises BrokerError."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    described, found = ids(client, topics), {}
    for topic, (identity, partitions) in described.items():
        ends = []
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
            wanted = {TopicPartition(topic, p): spec for p in partitions}
            try:
                answers = client.list_offsets(wanted, request_timeout=_WITHIN)
                ends.append({str(at.partition): future.result().offset for at, future in answers.items()})
            except KafkaException as err:
                raise BrokerError(
                    f"topic={topic}: the broker must tell its offsets within {_WITHIN:.0f} s and did not ({err.args[0].str()}); "
                    "check that it runs"
                ) from err
        found[topic] = Broker(identity, *ends)
    return found


def check_ids(settings: Settings, table: Table, present: Mapping[str, str]) -> None:
    """Keeps the ids of topics that are new to the table; raises TopicError if one is not that which the table has read."""
    before = known(settings, table)
    if nameless := sorted(topic for topic, identity in present.items() if not identity):
        _say(
            f"table={table.name}, topic={', '.join(nameless)}: the broker gives it no id (it is older than Kafka 2.8), so one "
            "that is deleted and created again is not noticed, unless it has fewer messages than were read"
        )
        present = {topic: identity for topic, identity in present.items() if identity}
    if new := sorted(present.keys() - before.ids.keys()):
        before = replace(before, ids=_read_before(settings, table, new) | before.ids)
    for topic, identity in present.items():
        if before.ids.get(topic, identity) != identity:
            raise TopicError(
                f"table={table.name}, topic={topic}, id={identity}: the table has read the topic of id {before.ids[topic]}, "
                f"and this is another one of that name, so its offsets mean other messages; `lakehouse new-topic {table.name}` "
                "declares it, and reads it from its beginning"
            )
    if new:
        note(settings, table, replace(before, ids={**before.ids, **present}))


def _read_before(settings: Settings, table: Table, topics: Sequence[str]) -> dict[str, str]:
    """The ids of topics as the table's last commit has them, where the file that keeps them does not know them (any more)."""
    from lakehouse import checkpoints

    last = checkpoints.standing(settings, table).last
    read = [topic for topic in topics if last and topic in last.inputs]
    if not read:
        return {}
    written = checkpoints.standing(settings, table).written
    found = {topic: written.topics[topic] for topic in read if written and topic in written.topics}
    lost = f"table={table.name}, file={_path(settings, table)}: it is gone, or does not have the ids of {', '.join(read)}"
    unknown = sorted(set(read) - found.keys())
    what = "they are taken from the table's last commit"
    if unknown:
        what = f"nor does the table's last commit, so {', '.join(unknown)} count as the ones that were read as they are now"
    _say(f"{lost}; {what}; gaps that were declared are forgotten, and are asked for again")
    return found


_said: set[str] = set()


def _say(what: str) -> None:
    """On standard error, once in the life of a process."""
    if what not in _said:
        _said.add(what)
        print(what, file=sys.stderr, flush=True)


def watch(settings: Settings, table: Table, topics: Sequence[str]) -> Callable[[], None]:
    """Compares the ids again, each time it is called. Raises TopicError."""
    client, failing = admin(settings), False

    def look() -> None:
        nonlocal failing
        try:
            found = ids(client, topics)
        except BrokerError as err:  # while it is away nothing can be read either, and the next look compares
            if not failing:
                told = "the ids of the topics are compared again once it answers"
                print(f"table={table.name}: {err}; {told}", file=sys.stderr, flush=True)
            failing = True
            return
        failing = False
        check_ids(settings, table, {topic: identity for topic, (identity, _) in found.items()})

    return look


def start(settings: Settings, table: Table, topics: Sequence[str], last: Commit | None, *, waits: bool) -> Offsets:
    """Where a generation begins to read: behind the last commit; of a topic that is new, or made again, at its beginning.

    Raises TopicError for a topic that is not the one read, CommitError if what comes next is not there any more. A query that has
    its offsets `waits` for a topic that is behind them: a broker that has just started may still be recovering it.
    """
    found = on_broker(admin(settings), topics)
    check_ids(settings, table, {topic: each.id for topic, each in found.items()})
    if last is None:
        return {}
    now = known(settings, table)
    begun = {}
    for topic, there in found.items():
        if topic not in last.inputs or now.begins(topic, last):
            continue
        read = {p: _past(now.gaps, topic, p, offset) for p, offset in last.inputs[topic].items()}
        _check_there(table, topic, read, there, waits)
        begun[topic] = {p: read.get(p, _EARLIEST) for p in there.end}
    return begun


def _past(gaps: Sequence[Gap], topic: str, partition: str, offset: int) -> int:
    """The offset behind the furthest gap that was declared to begin there: the topic may have lost more since."""
    return max((g.until for g in gaps if (g.topic, g.partition, g.since) == (topic, partition, offset)), default=offset)


def lost(settings: Settings, table: Table, found: Mapping[str, Broker], last: Commit) -> list[Gap]:
    """The offsets behind the last commit that the topics do not have any more."""
    now = known(settings, table)
    read = {topic: last.inputs.get(topic, {}) for topic in found if not now.begins(topic, last)}
    return [
        Gap(topic, p, offset, found[topic].first[p])
        for topic, offsets in read.items()
        for p, offset in offsets.items()
        if _past(now.gaps, topic, p, offset) < found[topic].first.get(p, 0)
    ]


def declare_lost(settings: Settings, table: Table, gaps: Sequence[Gap]) -> None:
    """Notes gaps that someone has declared, each in place of an older one that begins where it does."""
    before = known(settings, table)
    begin = {(gap.topic, gap.partition, gap.since) for gap in gaps}
    kept = (gap for gap in before.gaps if (gap.topic, gap.partition, gap.since) not in begin)
    note(settings, table, replace(before, gaps=(*kept, *gaps)))


def _check_there(table: Table, topic: str, read: Mapping[str, int], there: Broker, waits: bool) -> None:
    for partition, offset in read.items():
        where = f"table={table.name}, topic={topic}, partition={partition}, offset={offset}"
        if offset < there.first.get(partition, 0):
            raise CommitError(
                f"{where}: the table goes on from there, and the topic begins with {there.first[partition]}; what is between is "
                f"lost to the table. `lakehouse accept-gap {table.name}` declares that and goes on; lengthen the retention"
            )
        if offset > there.end.get(partition, -1):
            wrong = (
                f"{where}: the table has read up to there, and the topic ends with {there.end.get(partition, 'none')}, so it has "
                "lost messages since; recover the topic, or create it again and declare that by "
                f"`lakehouse new-topic {table.name}`"
            )
            if not waits:
                raise CommitError(wrong)
            print(wrong, file=sys.stderr, flush=True)


def check_joined(table: Table, topics: Topics, before: Commit | None, begins: Offsets | None, ends: Offsets) -> None:
    """Raises CommitError if a micro-batch does not begin where the commit before it ended, by topic and partition.

    `begins` may leave out partitions that are new, which begin at their first offset.
    """
    for topic, partitions in ends.items():
        begun = (begins or {}).get(topic, {})
        for partition, end in partitions.items():
            where = f"table={table.name}, topic={topic}, partition={partition}"
            if end < begun.get(partition, 0):
                raise CommitError(
                    f"{where}, offset={end}: a micro-batch reads forward, and this one would go back from {begun[partition]}; "
                    "the topic has fewer messages than were read, see whether it was created again"
                )
            if before is None or topic not in before.inputs or topics.begins(topic, before) or partition not in begun:
                continue
            read = before.inputs[topic].get(partition, begun[partition])
            if begun[partition] not in (read, _past(topics.gaps, topic, partition, read)):
                what = "skip" if begun[partition] > read else "read twice"
                raise CommitError(
                    f"{where}, offset={begun[partition]}: offsets join on from commit to commit, the last one ended at {read}, "
                    f"and this micro-batch would {what} what lies between; remove the newest folder of the table's checkpoint, "
                    "and its job begins a generation behind the last commit"
                )


def declare_anew(settings: Settings, table: Table, present: Mapping[str, str], last: tuple[int, int]) -> None:
    """Notes that topics of these ids are read from their beginning, behind that micro-batch (generation, batch)."""
    before, now = known(settings, table), datetime.now(UTC).isoformat()
    changed = {topic: identity for topic, identity in present.items() if before.ids.get(topic, identity) != identity}
    anew = dict.fromkeys(changed, (*last, now))
    gaps = tuple(gap for gap in before.gaps if gap.topic not in changed)
    note(settings, table, Topics({**before.ids, **present}, {**before.anew, **anew}, gaps))
