"""A table published to OpenSearch: a search sees each version whole, however its follower or its server ends."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from urllib.error import HTTPError

import pyarrow as pa
import pytest

from lakehouse import Position, RowChange, opensearch
from lakehouse.errors import SinkAway, SinkError
from lakehouse.sinks import trial
from lakehouse.sinks.comparison import repair
from lakehouse.sinks.follower import Follower
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.sinks.targets.opensearch import EPOCH, OpenSearchSink
from lakehouse.sinks.targets.opensearch_index import PLACE, Document, Index
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.testing import assert_exactly_once
from support import published, tls_front
from support.dying import Dying
from support.followed_balances import (
    caught_up,
    causes,
    check_under_kills,
    made,
    path_of,
    table_of,
)
from support.opensearch import Server, running

pytestmark = [pytest.mark.slow, pytest.mark.parallel]

DEATHS = ("opened", "half", "written", "unseen", "committed", "at random")
VERSIONS = 36


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def server(shared) -> Iterator[Server]:
    yield shared
    shared.ask("DELETE", "/*")


@pytest.fixture
def lakehouse(tmp_path) -> Lakehouse:
    return made(tmp_path)


def follower(lakehouse: Lakehouse, server: Server) -> Follower:
    target = opensearch("balances", key="account", url=server.url)
    return Follower(lakehouse, table_of(lakehouse), target)


def found_by(server: Server, query: dict, index: str = "balances") -> dict[str, dict]:
    """The rows that a search gives, by id."""
    said = server.ask("POST", f"/{index}/_search", {"size": 100, "query": query})
    return {hit["_id"]: hit["_source"] for hit in said["hits"]["hits"]}


def rows_of(server: Server) -> dict[str, dict]:
    return found_by(server, {"exists": {"field": "account"}})


def test_rows_come_change_and_go_and_what_somebody_changed_is_found_and_repaired(lakehouse, server):
    following = follower(lakehouse, server)
    following.begin()
    caught_up(following)
    published.upsert(path_of(lakehouse), 0, {"a": "1.00", "b": "2.00", "c:d*": "3.00"})
    caught_up(following)
    published.upsert(path_of(lakehouse), 1, {"a": "9.00"}, ("b",))
    caught_up(following)
    assert rows_of(server) == {
        "a": {"account": "a", "balance": "9.00"},
        "c:d*": {"account": "c:d*", "balance": "3.00"},
    }
    assert set(found_by(server, {"range": {"balance": {"gt": 8.5}}})) == {"a"}
    following.end()
    assert causes(lakehouse, following) == {}
    for _ in range(3):  # each raises the version of the document
        server.ask("PUT", "/balances/_doc/a", {"account": "a", "balance": "7.00"})
    server.ask("PUT", "/balances/_doc/new", {"account": "new"})
    server.ask("DELETE", "/balances/_doc/c:d*?refresh=true")
    assert causes(lakehouse, following) == {"a": "edited", "c:d*": "missing", "new": "edited"}
    assert repair(lakehouse, following.table, following.target) == 3
    assert causes(lakehouse, following) == {}
    server.ask("PUT", "/balances/_doc/a", {"account": "a", "balance": "7.00"})
    heir = follower(lakehouse, server)  # and an edit is overwritten by the next version of its row
    heir.begin()
    for _ in range(5):
        server.ask("PUT", "/balances/_doc/a", {"account": "a", "balance": "7.00"})
    published.upsert(path_of(lakehouse), 2, {"a": "5.00"})
    caught_up(heir)
    heir.end()
    assert causes(lakehouse, heir) == {}


class Mortal(Dying, OpenSearchSink):
    """A sink that dies, also with half of a version written, and with all of one that no search sees yet."""

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        if self.point == "half" and len(changes) > 1:
            super().write(version, changes[: len(changes) // 2])
            self._die("half")
        super().write(version, changes)

    def commit(self, position: Position) -> None:
        if self.point == "unseen":
            self._index.refresh = lambda: self._die("unseen")  # type: ignore[method-assign]
        super().commit(position)


def test_a_search_beside_sees_whole_versions_though_the_follower_is_killed_again_and_again(
    lakehouse, server
):
    def held() -> dict[str, str | None]:
        try:
            return {name: row["balance"] for name, row in rows_of(server).items()}
        except HTTPError:  # before there is an index
            return {}

    target = follower(lakehouse, server).target
    check_under_kills(lakehouse, target, Mortal, DEATHS, VERSIONS, held)


def test_an_index_passes_the_test_kit_of_sinks(server, tmp_path):
    target = opensearch("accounts", key=["account", "n"], url=server.url)
    ends = assert_exactly_once(target, tmp_path / "trial", lives=4)
    assert set(ends) > {*trial.DEATHS[:4], "replaced, opened", "replaced, written"}


def test_what_a_process_that_was_replaced_writes_is_refused_and_so_is_an_older_row(server):
    target = opensearch("balances", key="account", url=server.url)
    zombie, heir = OpenSearchSink(target), OpenSearchSink(target)
    schema = pa.schema([("account", pa.string()), ("n", pa.int64())])
    older, newer = ([RowChange("update", {"account": "a", "n": n})] for n in (1, 2))
    gone = [RowChange("delete", {"account": "b"})]
    zombie.open()
    zombie.columns(schema)
    zombie.write(4, older)
    heir.open()
    heir.write(5, newer)
    heir.commit(Position("id", 5))
    for changes in (older, gone):
        with pytest.raises(SinkError, match="another process has taken it over"):
            zombie.write(4, changes)
    with pytest.raises(SinkError, match="another process has taken it over"):
        zombie.commit(Position("id", 4))
    assert set(server.ask("GET", "/_all")) == {"balances"}  # no index by an alias that is gone
    # a request that was on its way: the index compares versions
    index = Index("balances", "balances", server.url)
    (late,) = index.write("balances", EPOCH + 4, [Document("a", '{"account":"a","n":1}')])
    assert late["status"] == 409
    assert found_by(server, {"ids": {"values": ["a"]}}) == {"a": {"account": "a", "n": 2}}
    for sink in (zombie, heir):
        sink.close()
    index.server.close()


def test_rows_of_a_first_version_that_was_cut_do_not_stay(lakehouse, server):
    target = opensearch("balances", key="account", url=server.url)
    cut = OpenSearchSink(target)
    cut.open()
    cut.columns(pa.schema([("account", pa.string())]))
    cut.write(0, [RowChange("insert", {"account": "gone before the next process comes"})])
    cut.close()
    published.upsert(path_of(lakehouse), 0, {"a": "1.00"})
    following = follower(lakehouse, server)
    following.begin()
    caught_up(following)
    following.end()
    assert set(rows_of(server)) == {"a"} and causes(lakehouse, following) == {}


def test_a_server_behind_tls_is_one_whose_authority_and_user_are_known(
    lakehouse, server, tmp_path, monkeypatch
):
    password = "p:w/@%"  # none of these may be read as a part of the address
    monkeypatch.setenv("SEARCH_PASSWORD", password)
    published.upsert(path_of(lakehouse), 0, {"a": "1.00"})
    with tls_front.https(server.url, "ann", password, tmp_path) as port:
        target = opensearch(
            "balances", key="account", url=f"https://ann:${{SEARCH_PASSWORD}}@127.0.0.1:{port}"
        )
        with pytest.raises(
            SinkError, match=r"certificate of the server does not hold .*SSL_CERT_FILE"
        ):
            Follower(lakehouse, table_of(lakehouse), target).begin()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / tls_front.AUTHORITY))
        monkeypatch.setenv("SEARCH_PASSWORD", "another")
        with pytest.raises(
            SinkError, match=r"refuses it \(401 Unauthorized\); set user and password"
        ):
            Follower(lakehouse, table_of(lakehouse), target).begin()
        monkeypatch.setenv("SEARCH_PASSWORD", password)
        following = Follower(lakehouse, table_of(lakehouse), target)
        following.begin()
        caught_up(following)
        following.end()
        assert causes(lakehouse, following) == {}
    assert rows_of(server) == {"a": {"account": "a", "balance": "1.00"}}


def test_a_value_that_the_mapping_does_not_take_is_named_and_nothing_of_its_version_is_seen(
    lakehouse, server
):
    mapping = {"properties": {"balance": {"type": "boolean"}}}
    server.ask("PUT", "/balances", {"mappings": mapping, "settings": {"number_of_shards": 2}})
    published.upsert(path_of(lakehouse), 0, {"a": "1.00"})
    following = follower(lakehouse, server)
    following.begin()
    with pytest.raises(
        SinkError, match=r"key='a': balances refuses this row .*balance.*boolean.*1\.00"
    ):
        caught_up(following)
    assert rows_of(server) == {} and following.sink.position() is None
    of_index = server.ask("GET", "/balances")["balances"]["settings"]["index"]
    assert of_index["refresh_interval"] == "-1"
    assert "2 shards" in following.sink.remarks()[0]
    following.sink.close()


def test_an_index_of_somebody_else_is_refused(lakehouse, server):
    following = follower(lakehouse, server)
    server.ask("PUT", "/orders/_doc/1", {"of": "somebody else"})
    server.ask(
        "POST", "/_aliases", {"actions": [{"add": {"index": "orders", "alias": "balances"}}]}
    )
    with pytest.raises(SinkError, match="it is another name of orders"):
        following.begin()
    server.ask("DELETE", "/orders")
    server.ask("PUT", "/balances/_doc/1", {"of": "somebody else"})
    with pytest.raises(SinkError, match=r"it has 1 documents and no position"):
        following.begin()
    following.sink.close()


def test_a_server_that_is_killed_goes_on_and_an_index_that_was_deleted_is_filled_again(lakehouse):
    with running() as server:
        following = follower(lakehouse, server)
        published.upsert(path_of(lakehouse), 0, {"a": "1.00"})
        following.begin()
        caught_up(following)
        server.kill()
        published.upsert(path_of(lakehouse), 1, {"b": "2.00"})
        with pytest.raises(SinkAway, match="the server must take the request and did not"):
            caught_up(following)
        server.start()
        again = follower(lakehouse, server)
        again.begin()
        caught_up(again)
        assert set(rows_of(server)) == {"a", "b"} and causes(lakehouse, again) == {}
        server.ask("DELETE", "/balances")
        published.upsert(path_of(lakehouse), 2, {"c": "3.00"})
        with pytest.raises(SinkAway, match="emptied or deleted; its follower fills it again"):
            caught_up(again)
        heir = follower(lakehouse, server)
        heir.begin()
        caught_up(heir)
        assert set(rows_of(server)) == {"a", "b", "c"} and causes(lakehouse, heir) == {}
        for each in (following, again, heir):
            each.sink.close()


def test_values_of_every_type_come_back_as_they_are_and_searches_find_them(server):
    target = opensearch("values", key="n", url=server.url)
    schema = pa.schema(
        [
            ("n", pa.int64()), ("t", pa.string()), ("b", pa.bool_()), ("d", pa.float64()), ("inf", pa.float64()),
            ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("raw", pa.binary()), ("m", pa.decimal128(38, 3)),
            ("many", pa.list_(pa.int64())), ("tags", pa.map_(pa.string(), pa.int64())),
            ("part", pa.struct([("x", pa.decimal128(4, 1)), ("y", pa.string())])),
        ]
    )  # fmt: skip
    given = {
        "n": 1, "t": "\u00fc\t\\ ' Two\n Words", "b": True, "d": 0.1, "inf": float("inf"),
        "day": date(1, 1, 2), "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "raw": b"\x00\xff",
        "m": Decimal("12345678901234567890123456789012345.100"), "many": [1, 2], "tags": {"x.y": 1, "z": None},
        "part": {"x": Decimal("1.5"), "y": None},
    }  # fmt: skip
    nothing = dict.fromkeys(given) | {"n": 2}
    sink = OpenSearchSink(target)
    sink.open()
    sink.columns(schema)
    sink.write(1, [RowChange("insert", row) for row in (given, nothing)])
    sink.commit(Position("id", 1))
    assert {value for _, value, _ in sink.rows(1)} == {value_of(given), value_of(nothing)}
    for query in (
        {"match": {"t": "words"}}, {"term": {"b": True}}, {"range": {"d": {"gt": 0.05, "lt": 0.15}}},
        {"range": {"day": {"lte": "0001-01-02"}}}, {"range": {"at": {"gte": "2026-01-02T03:04:05Z"}}},
        {"range": {"m": {"gt": 1e34}}}, {"term": {"many": 2}}, {"range": {"part.x": {"gte": 1.5}}},
    ):  # fmt: skip
        assert set(found_by(server, query, "values")) == {"1"}, query
    # a column that is new, a column that is wider, and a field of a struct
    part = pa.struct([("x", pa.decimal128(4, 1)), ("z", pa.int64())])
    wider = pa.schema(
        [("n", pa.int64()), ("many", pa.list_(pa.float64())), ("part", part), ("new", pa.string())]
    )
    sink.columns(wider)
    sink.write(
        2,
        [RowChange("insert", {"n": 3, "many": [1.5], "part": {"x": None, "z": 7}, "new": "word"})],
    )
    sink.commit(Position("id", 2))
    for query in ({"term": {"part.z": 7}}, {"term": {"new.keyword": "word"}}):
        assert set(found_by(server, query, "values")) == {"3"}, query
    assert PLACE not in found_by(server, {"exists": {"field": "n"}}, "values")
    with pytest.raises(SinkError, match=r"columns=_id: it must take them as fields"):
        sink.columns(pa.schema([("n", pa.int64()), ("_id", pa.string())]))
    sink.close()
