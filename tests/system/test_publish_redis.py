"""A table published to Redis: each version once and whole for whoever reads beside, however its follower or its server ends."""

import dataclasses
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
import redis

from lakehouse import Position, RowChange, redis_keys
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.sinks import trial
from lakehouse.sinks.comparison import repair
from lakehouse.sinks.follower import Follower
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.sinks.targets.redis import RedisSink
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.testing import assert_exactly_once
from support import published
from support.dying import Dying
from support.followed_balances import (
    caught_up,
    causes,
    check_under_kills,
    made,
    path_of,
    table_of,
)
from support.redis import Server, running

pytestmark = [pytest.mark.slow, pytest.mark.parallel]

VERSIONS = 28
DEATHS = ("opened", "written", "committed", "at random")
PLACE = "lakehouse-position:balances"


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def server(shared) -> Iterator[Server]:
    yield shared
    with shared.client() as client:
        client.flushall()


@pytest.fixture
def lakehouse(tmp_path) -> Lakehouse:
    return made(tmp_path)


@pytest.fixture
def client(server) -> Iterator[redis.Redis]:
    with server.client() as found:
        yield found


def follower(lakehouse: Lakehouse, server: Server, **how) -> Follower:
    target = redis_keys("balances", key="account", url=server.url, **how)
    return Follower(lakehouse, table_of(lakehouse), target)


@pytest.mark.parametrize("form", ["hash", "json"])
def test_rows_come_change_and_go_and_what_somebody_changed_is_found_and_repaired(
    lakehouse, server, client, form
):
    following = follower(lakehouse, server, format=form)
    following.begin()
    caught_up(following)
    published.upsert(path_of(lakehouse), 0, {"a": "1.00", "b": "2.00", "c:d*": "3.00"})
    caught_up(following)
    published.upsert(path_of(lakehouse), 1, {"a": "9.00"}, ("b",))
    caught_up(following)
    if form == "hash":
        assert client.hgetall("balances:a") == {"account": "a", "balance": "9.00"}
    else:
        assert client.get("balances:a") == '{"account":"a","balance":"9.00"}'
    assert set(client.keys("balances:*")) == {"balances:a", "balances:c:d*"}
    following.end()
    assert causes(lakehouse, following) == {}
    client.mset({"balancesX": "another's", "balances[": "another's"})
    client.delete("balances:a", "balances:c:d*")
    client.lpush("balances:c:d*", "a list")
    if form == "hash":
        client.hset("balances:new", "x", "1")
    else:
        client.set("balances:new", "x")
    assert causes(lakehouse, following) == {"a": "missing", "c:d*": "edited", "new": "extra"}
    assert repair(lakehouse, following.table, following.target) == 3
    assert causes(lakehouse, following) == {}
    assert client.get("balancesX") == client.get("balances[") == "another's"


class Mortal(Dying, RedisSink):
    """A sink that dies."""


def test_a_reader_beside_sees_whole_versions_though_the_follower_is_killed_again_and_again(
    lakehouse, server, client
):
    def held() -> dict[str, str | None]:
        with client.pipeline(transaction=True) as together:
            for name in "abcdefg":
                together.hget(f"balances:{name}", "balance")
            return dict(zip("abcdefg", together.execute(), strict=True))

    target = follower(lakehouse, server).target
    check_under_kills(lakehouse, target, Mortal, DEATHS, VERSIONS, held)


@pytest.mark.parametrize("form", ["hash", "json"])
def test_keys_of_redis_pass_the_test_kit_of_sinks(server, tmp_path, form):
    target = redis_keys("accounts", key=["account"], url=server.url, format=form)
    ends = assert_exactly_once(target, tmp_path / "trial", lives=3)
    assert set(ends) > {*trial.DEATHS[:3], "replaced, opened", "replaced, written"}


def test_a_server_that_has_gone_back_is_brought_forward_again(lakehouse):
    """It is restarted with an older copy of what it had; the follower's own position is ahead of it."""
    with running() as server, server.client() as client:
        following = follower(lakehouse, server)
        following.begin()
        published.upsert(path_of(lakehouse), 0, {"a": "1.00"})
        caught_up(following)
        client.save()
        published.upsert(path_of(lakehouse), 1, {"b": "2.00"})
        caught_up(following)
        assert set(client.keys("balances:*")) == {"balances:a", "balances:b"}
        server.kill()
        published.upsert(path_of(lakehouse), 2, {"c": "3.00"})
        with pytest.raises(SinkAway, match="the server must take the request and did not"):
            caught_up(following)
        server.start()
        assert set(client.keys("balances:*")) == {"balances:a"}
        with pytest.raises(SinkAway, match=r"the server has gone back to .*the follower goes on"):
            following.step()
        following.sink.close()
        heir = follower(lakehouse, server)
        heir.begin()
        caught_up(heir)
        assert set(client.keys("balances:*")) == {f"balances:{name}" for name in "abc"}
        assert causes(lakehouse, heir) == {}


def test_a_password_that_is_wrong_ends_the_follower_and_a_server_without_room_is_waited_for(
    lakehouse, monkeypatch
):
    published.upsert(path_of(lakehouse), 0, {"a": "1.00"})
    with running("--requirepass", "right") as server:
        url = f"redis://:${{REDIS_PASSWORD}}@127.0.0.1:{server.port}/0"
        target = redis_keys("balances", key="account", url=url)
        table = table_of(lakehouse)
        with pytest.raises(SinkError, match="variable=REDIS_PASSWORD"):
            Follower(lakehouse, table, target).begin()
        monkeypatch.setenv("REDIS_PASSWORD", "wrong")
        with pytest.raises(SinkError, match="the server refuses it") as err:
            Follower(lakehouse, table, target).begin()
        assert not isinstance(err.value, SinkAway)
        monkeypatch.setenv("REDIS_PASSWORD", "right")
        following = Follower(lakehouse, table, target)
        following.begin()
        admin = redis.Redis(port=server.port, password="right", decode_responses=True)
        with admin:
            admin.config_set("maxmemory", "1")
            with pytest.raises(SinkAway, match=r"OOM|used memory"):
                caught_up(following)
            assert admin.keys("balances:*") == []
            admin.config_set("maxmemory", "0")
            again = Follower(lakehouse, table, target)
            again.begin()
            caught_up(again)
            assert admin.keys("balances:*") == ["balances:a"]
        for each in (following, again):
            each.sink.close()


def test_a_position_that_is_gone_is_noticed_and_keys_that_nobody_knows_are_refused(
    lakehouse, server, client
):
    following = follower(lakehouse, server)
    following.begin()
    published.upsert(path_of(lakehouse), 0, {"a": "1.00", "b": "1.00"})
    caught_up(following)
    published.upsert(path_of(lakehouse), 1, {"c": "2.00"}, ("b",))
    client.delete(PLACE)
    with pytest.raises(SinkAway, match=f"{PLACE} was removed"):
        caught_up(following)
    heir = follower(lakehouse, server)
    with pytest.raises(SinkError, match=r"keys with its prefix .* has no position.* --repair"):
        heir.begin()
    repair(lakehouse, heir.table, heir.target)
    assert set(client.keys("balances:*")) == {"balances:a", "balances:c"}
    heir.begin()
    client.flushdb()
    published.upsert(path_of(lakehouse), 2, {"d": "2.00"})
    with pytest.raises(SinkAway, match="was removed"):
        caught_up(heir)
    last = follower(lakehouse, server)
    last.begin()
    caught_up(last)
    assert causes(lakehouse, last) == {}
    assert set(client.keys("balances:*")) == {f"balances:{name}" for name in "acd"}


@pytest.mark.parametrize("form", ["hash", "json"])
def test_values_of_every_type_come_back_as_they_are(server, form):
    target = redis_keys("values", key="n", url=server.url, format=form)
    schema = pa.schema(
        [
            ("n", pa.int64()), ("t", pa.string()), ("b", pa.bool_()), ("d", pa.float64()), ("inf", pa.float64()),
            ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("raw", pa.binary()), ("m", pa.decimal128(12, 3)),
            ("many", pa.list_(pa.int64())), ("part", pa.struct([("x", pa.decimal128(4, 1)), ("y", pa.string())])),
            ("digits", pa.string()),
        ]
    )  # fmt: skip
    given = {
        "n": 1, "t": "\u00fc\t\\ ' \"\n", "b": True, "d": 0.1, "inf": float("inf"),
        "day": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "raw": b"\x00\xff",
        "m": Decimal("123456789.100"), "many": [1, 2], "part": {"x": Decimal("1.5"), "y": None}, "digits": "007",
    }  # fmt: skip
    nothing = dict.fromkeys(given) | {"n": 2}
    sink = RedisSink(target)
    sink.open()
    sink.columns(schema)
    sink.write(1, [RowChange("insert", row) for row in (given, nothing)])
    sink.commit(Position("id", 1))
    assert {value for _, value, _ in sink.rows(1)} == {value_of(given), value_of(nothing)}
    sink.close()


def test_what_cannot_be_is_refused_as_it_is_declared():
    for changed, said in (
        ({"format": "list"}, "format='list': one of hash, json"),
        ({"url": "localhost:6379"}, "url: it begins with one of redis://"),
        ({"prefix": ""}, "prefix=''"),
    ):
        given = {"prefix": "balances", "key": "account"} | changed
        with pytest.raises(DeclarationError, match=said):
            redis_keys(given.pop("prefix"), **given)
    hidden = dataclasses.replace(redis_keys("a", key="b"), url="redis://:secret@host")
    assert "secret" not in repr(hidden)
