"""A table published to a topic of a real broker: each version once, in order, however often its follower is killed."""

import json
import multiprocessing
import os
import random
import re
import shlex
import signal
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake
from typer.testing import CliRunner

from assets import resources, targets
from lakehouse import kafka_topic
from lakehouse.cli.main import app
from lakehouse.declare import catalog
from lakehouse.errors import CommitError, LakehouseError, SinkAway, SinkError
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_address import bootstrap_servers
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.sinks import trial
from lakehouse.sinks.comparison import compare, repair
from lakehouse.sinks.follower import Follower
from lakehouse.sinks.targets import kafka
from lakehouse.sinks.targets.kafka import KafkaSink
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.testing import assert_exactly_once
from streaming_jobs.supervision import control_loop, supervisor
from streaming_jobs.supervision.jobs import follower_of
from support import ROOT, committed, published
from support.dying import Dying
from support.schema_registry import served as serving
from support.sensors_job import awaited

LIVES, ROWS, ACCOUNTS = 8, 20, 7
DEATHS = ("opened", "written", "committed", "at random")


@pytest.fixture
def lakehouse(served, tmp_path) -> Iterator[Lakehouse]:
    """With the two tables, and no topic of an earlier test."""
    settings = replace(
        served,
        root=tmp_path,
        tables=("support.published",),
        bootstrap_servers=bootstrap_servers(served),
    )
    lakehouse = Lakehouse(settings, catalog.load(settings))
    published.make_payments(path_of(lakehouse, "payments"))
    published.make_balances(path_of(lakehouse, "balances"))
    yield lakehouse
    remove_topics(settings, lambda name: not name.startswith("__"))


def remove_topics(settings: Settings, chosen: Callable[[str], bool]) -> None:
    admin = AdminClient(client_config(settings))
    if found := list(filter(chosen, admin.list_topics(timeout=30).topics)):
        for done in admin.delete_topics(found).values():
            done.result()


def path_of(lakehouse: Lakehouse, table: str) -> Path:
    return lakehouse.path(lakehouse.catalog.table(table))


def follower(lakehouse: Lakehouse, target: str = "payments", **changed) -> Follower:
    table, declared = lakehouse.catalog.target(target)
    return Follower(lakehouse, table, replace(declared, **changed))


def caught_up(following: Follower) -> list:
    """The steps up to the newest version."""
    steps = []
    while step := following.step():
        steps.append(step)
    return steps


def version_of(message: Message) -> int:
    return int(dict(message.headers())["lakehouse-version"])


def checked(settings: Settings, target: str) -> tuple[bool, dict]:
    """What Dagster's check of a target says."""
    resource = resources.LakehouseResource.of(settings, own=("bootstrap_servers",))
    found = targets._target_equals_table(target)(lakehouse=resource)
    return found.passed, found.metadata["differences"].value


class Mortal(Dying, KafkaSink):
    def last_words(self) -> None:
        self._producer.flush(1)  # what was written is at the broker, in an open transaction


def follow(settings: Settings, point: str) -> None:
    """A process: follows until it dies."""
    following = follower(Lakehouse(settings, catalog.load(settings)))
    following.sink = Mortal(settings, following.target, following.table.name)
    following.sink.point = point
    following.begin()
    while True:
        if following.step() is None:
            time.sleep(0.01)


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
def test_each_row_is_once_in_the_topic_and_in_order_though_its_follower_is_killed_many_times(
    lakehouse,
):
    settings, payments = lakehouse.settings, path_of(lakehouse, "payments")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["support.published", "lakehouse.sinks.targets.kafka", "confluent_kafka"]
    )
    chance = random.Random(7)
    batch, replaced = 0, {}
    for life in range(LIVES):
        point = DEATHS[life % len(DEATHS)]
        process = context.Process(target=follow, args=(settings, point), daemon=True)
        process.start()
        for _ in range(3):  # versions while it lives
            rows = [(f"a{n % ACCOUNTS}", batch * ROWS + n, "1.00") for n in range(ROWS)]
            published.append(payments, batch, rows, str(batch))
            batch += 1
        if life in (3, 6):  # a batch run replaces a partition: one row goes, one is another
            first, *others = rows
            others[0] = (*others[0][:2], "9.00")
            published.replace(payments, others, str(batch - 1))
            replaced[delta_log.latest(payments)] = (first[1], others[0][1])
        if point == "at random":
            time.sleep(0.5 + chance.random())
            process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, point
    last = follower(lakehouse)
    last.begin()
    caught_up(last)
    last.end()

    messages = committed.read(settings, "payments", 3)
    inserted = [m for m in messages if dict(m.headers())["lakehouse-change"] == b"insert"]
    numbers = [json.loads(m.key())["n"] for m in inserted]
    assert len(numbers) == batch * ROWS and sorted(numbers) == list(range(batch * ROWS)), "once"
    corrections = {
        (version_of(m), json.loads(m.key())["n"], m.value() is None)
        for m in messages
        if dict(m.headers())["lakehouse-change"] != b"insert"
    }
    assert corrections == {
        change
        for version, (gone, other) in replaced.items()
        for change in ((version, gone, True), (version, other, False))
    }
    by_account = defaultdict(list)
    for message in inserted:
        by_account[json.loads(message.key())["account"]].append(message)
    for account, of_account in by_account.items():
        assert len({m.partition() for m in of_account}) == 1, account
        order = [json.loads(m.key())["n"] for m in of_account]
        assert order == sorted(order), account
    found = compare(lakehouse, last.table, last.target)
    assert (found.verdict, found.version) == ("EQUAL", delta_log.latest(payments))


def test_keys_values_and_partitions_are_as_declared_whatever_the_text(lakehouse):
    path = path_of(lakehouse, "payments")
    names = ["", "é日🙂", 'a"b\\', "\n\x01\x7f", "plain"]
    published.append(path, 0, [(name, n, "1.00") for n, name in enumerate(names)])
    following = follower(lakehouse)
    following.begin()
    caught_up(following)
    following.end()
    assert compare(lakehouse, following.table, following.target).verdict == "EQUAL"
    as_json = {"ensure_ascii": False, "separators": (",", ":")}
    found = {
        message.key(): (message.value(), message.partition())
        for message in committed.read(lakehouse.settings, "payments", 3)
    }
    assert found == {
        json.dumps({"account": name, "n": n}, **as_json).encode(): (
            json.dumps(
                {"account": name, "n": n, "amount": "1.00", "at": "2026-01-01T00:00:00Z"}, **as_json
            ).encode(),
            zlib.crc32(name.encode()) % 3,
        )
        for n, name in enumerate(names)
    }


def test_a_zombie_is_refused_and_leaves_nothing(lakehouse):
    payments = path_of(lakehouse, "payments")
    published.append(payments, 0, [("a", 0, "1.00")])
    zombie = follower(lakehouse)
    zombie.begin()
    assert [step.sent for step in caught_up(zombie)] == [1]
    version = published.append(payments, 1, [("a", 1, "1.00")])
    zombie.sink.write(version, [])  # it sleeps in the middle of a transaction
    heir = follower(lakehouse)
    heir.begin()
    assert heir.position == zombie.position
    with pytest.raises(SinkError, match="topic=payments: another process has taken it over"):
        zombie.step()
    assert [step.sent for step in caught_up(heir)] == [1]
    heir.end()
    assert len(committed.read(lakehouse.settings, "payments", 3)) == 2
    assert compare(lakehouse, heir.table, heir.target).verdict == "EQUAL"


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
def test_a_topic_passes_the_test_kit_of_sinks(lakehouse, tmp_path):
    target = kafka_topic("accounts", key=["account", "region"], order_by="account", partitions=2)
    servers = lakehouse.settings.bootstrap_servers
    ends = assert_exactly_once(target, tmp_path / "trial", lives=2, bootstrap_servers=servers)
    assert set(ends) > {*trial.DEATHS[:2], "replaced, opened", "replaced, written"}


@pytest.mark.slow
@pytest.mark.parallel
def test_corrections_are_held_back_or_ignored_and_a_repair_sends_them(lakehouse):
    payments = path_of(lakehouse, "payments")
    published.append(payments, 0, [("a", 0, "1.00"), ("a", 1, "1.00")])
    holding = follower(lakehouse, corrections="hold")
    holding.begin()
    caught_up(holding)
    published.replace(payments, [("a", 0, "2.00")], "0")
    published.append(payments, 1, [("b", 2, "1.00")], "1")
    held, went_on = caught_up(holding)
    assert (held.sent, held.held, went_on.sent) == (0, 2, 1)
    assert holding.position.held == (held.version,)
    holding.end()
    found = compare(lakehouse, holding.table, holding.target)
    assert found.held == (held.version,)
    assert {(json.loads(each.key)["n"], each.cause) for each in found.differences} == {
        (0, "held"),
        (1, "held"),
    }
    assert repair(lakehouse, holding.table, holding.target) == 2
    found = compare(lakehouse, holding.table, holding.target)
    assert (found.verdict, found.held, found.version) == ("EQUAL", (), went_on.version)

    ignoring = follower(lakehouse, corrections="ignore")
    ignoring.begin()
    published.replace(payments, [("a", 0, "3.00")], "0")
    [ignored] = caught_up(ignoring)
    assert (ignored.ignored, ignored.sent, ignoring.position.held) == (1, 0, ())
    ignoring.end()
    assert compare(lakehouse, ignoring.table, ignoring.target).verdict == "DIFFERENT"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_keyed_table_is_its_topic_by_key_and_what_was_edited_there_is_found(lakehouse):
    settings, balances = lakehouse.settings, path_of(lakehouse, "balances")
    published.upsert(balances, 0, {"a": "1.00", "b": "2.00", "c": "3.00"})
    following = follower(lakehouse, "balances")
    following.begin()
    caught_up(following)
    for batch in range(1, 10):  # its files are merged meanwhile
        published.upsert(balances, batch, {"a": f"{batch}.00"}, ("b",) if batch == 5 else ())
    caught_up(following)
    following.end()
    messages = committed.read(settings, "balances", 1)
    assert [m.key() for m in messages if m.value() is None] == [b"b"]
    assert json.loads(messages[-1].value()) == {"account": "a", "balance": "9.00"}
    table, target = following.table, following.target
    assert compare(lakehouse, table, target).verdict == "EQUAL"

    somebody = Producer(client_config(settings))
    somebody.produce("balances", b'{"account":"a","balance":"0.00"}', b"a")
    somebody.produce("balances", b"{}", b"x")
    somebody.produce("balances", None, b"c")
    assert somebody.flush(30) == 0
    found = compare(lakehouse, table, target)
    assert checked(settings, "balances") == (False, {"edited": 2, "missing": 1})
    assert [(each.key, each.cause) for each in found.differences] == [
        ("a", "edited"),
        ("c", "missing"),
        ("x", "edited"),
    ]
    assert repair(lakehouse, table, target) == 3
    assert checked(settings, "balances") == (True, {})


@pytest.mark.slow
@pytest.mark.parallel
def test_what_cannot_be_followed_is_refused(lakehouse, monkeypatch):
    payments = path_of(lakehouse, "payments")
    published.append(payments, 0, [("a", 0, "1.00")])
    following = follower(lakehouse)
    following.begin()
    caught_up(following)
    following.end()
    with pytest.raises(SinkError, match="partitions=4: the broker has 3"):
        follower(lakehouse, partitions=4).begin()
    with pytest.raises(SinkError, match="key='nobody': payments has no such column"):
        follower(lakehouse, key=("nobody",)).begin()
    for batch in (1, 2):
        version = published.append(payments, batch, [("a", batch, "1.00")])
    delta_log.open_table(payments).create_checkpoint()
    for before in range(version):  # as Delta clears its log
        delta_log.commit_file(payments, before).unlink()
    with pytest.raises(CommitError, match=r"does not have it; .*--repair` sends what differs"):
        follower(lakehouse).begin()
    payments.rename(payments.with_name("former"))
    published.make_payments(payments)
    with pytest.raises(SinkError, match="of a table with the id"):
        follower(lakehouse).begin()
    assert repair(lakehouse, following.table, following.target) == 1
    remove_topics(lakehouse.settings, lambda name: name == "payments.position")
    with pytest.raises(SinkError, match="so the position was removed"):
        follower(lakehouse).begin()
    assert repair(lakehouse, following.table, following.target) == 0
    again = follower(lakehouse)
    again.begin()
    assert again.position.version == 0 and not caught_up(again)

    published.append(payments, 1, [("a", 8, "1.00")])
    assert [step.sent for step in caught_up(again)] == [1]
    remove_topics(lakehouse.settings, lambda name: name == "payments")
    kafka_broker.ensure_topics(lakehouse.settings, {"payments": 3}, {})
    monkeypatch.setattr(kafka, "_LOOK", 0)  # seconds
    published.append(payments, 2, [("a", 9, "1.00")])
    with pytest.raises(
        SinkError, match=r"deleted and made again \(id=.*\), and lacks what was sent before"
    ):
        again.step()
    with pytest.raises(SinkError, match=r"deleted and made again \(id="):
        follower(lakehouse).begin()
    assert compare(lakehouse, again.table, again.target).verdict == "DIFFERENT"
    assert repair(lakehouse, again.table, again.target) == 2
    assert compare(lakehouse, again.table, again.target).verdict == "EQUAL"
    assert issubclass(SinkError, LakehouseError)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_follower_is_started_healed_and_stopped_as_jobs_are(lakehouse, monkeypatch):
    settings, payments = lakehouse.settings, path_of(lakehouse, "payments")
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    page = (ROOT / "docs" / "how-to" / "publish.md").read_text()
    [block] = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    run, job = CliRunner(), follower_of("payments")
    published.append(payments, 0, [("a", 0, "1.00")])

    def status() -> dict:
        return json.loads(run.invoke(app(), ["publish", "status", "payments", "--json"]).stdout)

    started = run.invoke(app(), ["publish", "start", "payments"])
    assert started.exit_code == 0 and "payments: running, pid" in started.stdout, started.output
    awaited(lambda: status()["version"] == 1, "the first version is published")
    first = supervisor.status(settings, job).pid
    psutil.Process(first).kill()
    awaited(lambda: not supervisor.status(settings, job).alive, "it is dead")
    assert run.invoke(app(), ["publish", "status"]).exit_code == 1
    assert control_loop.step(settings, job).action == "start"
    published.append(payments, 1, [("a", 1, "1.00")])
    awaited(lambda: status()["version"] == 2, "its heir goes on")
    assert supervisor.status(settings, job).pid != first
    said = {}
    for words in lines:  # start again, and whatever else the page has
        done = run.invoke(app(), words[1:])
        # a repair takes the target over from the follower, which ends then
        assert done.exit_code in ((0, 1) if words[2] == "status" else (0,)), done.output
        said[" ".join(words[1:])] = done.stdout
    assert "payments EQUAL: version 2 of payments, 2 rows" in said["reconcile sink payments"]
    assert supervisor.status(settings, job).state in ("stopped", "failed")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_topic_of_avro_has_schemas_in_the_registry_and_equals_the_table(lakehouse):
    with serving() as registry:
        settings = replace(lakehouse.settings, registry={"url": registry.url})
        lakehouse = Lakehouse(settings, lakehouse.catalog)
        path = path_of(lakehouse, "payments")
        published.append(path, 0, [("a", 1, "1.00"), ("b", 2, "2.00")])
        following = follower(lakehouse, format="avro")
        following.begin()
        caught_up(following)
        assert registry.newest == {"payments-value": 1}
        fields = json.loads(registry.schemas[1]["schema"])["fields"]
        assert [each["name"] for each in fields] == ["account", "n", "amount", "at"]
        first = committed.read(settings, "payments", 3)[0]
        assert first.value()[:5] == b"\0\0\0\0\1"
        published.replace(path, [("a", 1, "9.00"), ("c", 3, "3.00")], "0")
        registry.away = True
        write_deltalake(  # a column more
            str(path), published._rows([("d", 4, "4.00")], "1").append_column("note", [["new"]]),
            mode="append", schema_mode="merge",
        )  # fmt: skip
        with pytest.raises(SinkAway, match="the schema registry must answer"):
            caught_up(following)
        following.sink.close()
        registry.away = False
        heir = follower(lakehouse, format="avro")
        heir.begin()
        registry.refuses = True
        with pytest.raises(SinkError, match=r"subject=payments-value.*refuses.*incompatible"):
            caught_up(heir)
        heir.sink.close()
        registry.refuses = False
        heir = follower(lakehouse, format="avro")
        heir.begin()
        caught_up(heir)
        heir.end()
        assert registry.newest == {"payments-value": 2}
        table, target = lakehouse.catalog.target("payments")
        target = replace(target, format="avro")
        found = compare(lakehouse, table, target)
        assert (found.verdict, found.rows) == ("EQUAL", 3), found
        somebody = Producer(client_config(settings))
        somebody.produce("payments", first.value(), b'{"account":"d","n":4}', 0)
        somebody.produce("payments", b"no Avro", b'{"account":"x","n":9}', 0)
        somebody.flush()
        found = compare(lakehouse, table, target)
        assert {(each.key, each.cause) for each in found.differences} == {
            ('{"account":"d","n":4}', "edited"),
            ('{"account":"x","n":9}', "edited"),
        }
        assert repair(lakehouse, table, target) == 2
        assert compare(lakehouse, table, target).verdict == "EQUAL"


@pytest.mark.slow
@pytest.mark.parallel
def test_a_topic_of_protobuf_equals_the_table_also_where_it_cannot_hold_a_null(lakehouse):
    with serving() as registry:
        settings = replace(lakehouse.settings, registry={"url": registry.url})
        lakehouse = Lakehouse(settings, lakehouse.catalog)
        path = path_of(lakehouse, "payments")
        published.append(path, 0, [("a", 1, "1.00"), ("b", 2, "2.00")])
        following = follower(lakehouse, format="protobuf")
        following.begin()
        caught_up(following)
        notes = pa.array([[], None, ["x"]], pa.list_(pa.string()))
        rows = [("c", 3, "3.00"), ("d", 4, "4.00"), ("e", 5, "5.00")]
        write_deltalake(
            str(path), published._rows(rows, "1").append_column("notes", notes),
            mode="append", schema_mode="merge",
        )  # fmt: skip
        caught_up(following)
        following.end()
        assert [each["schemaType"] for each in registry.schemas.values()] == ["PROTOBUF"] * 2
        assert "repeated string notes = 5;" in registry.schemas[2]["schema"]
        table, target = lakehouse.catalog.target("payments")
        found = compare(lakehouse, table, replace(target, format="protobuf"))
        assert (found.verdict, found.rows) == ("EQUAL", 5), found
