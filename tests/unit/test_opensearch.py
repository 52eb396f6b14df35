"""What is declared of an index, and what is made of a server's answers."""

import dataclasses
import json

import pyarrow as pa
import pytest

from lakehouse import RowChange, opensearch
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.sinks.targets import opensearch as module
from lakehouse.sinks.targets.opensearch import EPOCH, OpenSearchSink
from lakehouse.sinks.targets.opensearch_index import Document, Place, lacking, properties
from lakehouse.sinks.targets.opensearch_server import Server, refusal

KEYED = opensearch("balances", key="account")


def test_what_cannot_be_is_refused_as_it_is_declared():
    for changed, said in (
        ({"index": "Balances"}, "index='Balances'"),
        ({"index": "_balances"}, "index='_balances'"),
        ({"key": ()}, r"key=\[\]"),
        ({"url": "localhost:9200"}, "url: an address is http://"),
        ({"url": "http://localhost:9200?pretty"}, "url: an address is http://"),
        ({"corrections": "keep"}, "corrections='keep'"),
    ):
        given = {"index": "balances", "key": "account"} | changed
        with pytest.raises(DeclarationError, match=said):
            opensearch(given.pop("index"), **given)
    hidden = dataclasses.replace(KEYED, url="https://me:secret@host")
    assert "secret" not in repr(hidden)


def test_a_document_and_a_deletion_carry_an_external_version():
    of_row, of_deletion = Document('é "1"', '{"n":1}').line(7), Document("a").line(8)
    action, text, rest = of_row.split("\n")
    versioned = {"version_type": "external_gte"}
    assert json.loads(action) == {"index": {"_id": 'é "1"', "version": 7, **versioned}}
    assert (text, rest) == ('{"n":1}', "")
    assert json.loads(of_deletion) == {"delete": {"_id": "a", "version": 8, **versioned}}


def test_fields_that_an_index_lacks_are_added_and_no_other():
    inner = pa.struct([("x", pa.float32()), ("y", pa.list_(pa.int8()))])
    wanted = properties(
        pa.schema([("n", pa.int32()), ("part", pa.list_(inner)), ("s", pa.string())])
    )
    assert wanted["n"] == {"type": "long"}
    assert wanted["part"]["properties"]["y"] == {"type": "long"}
    assert wanted["s"]["fields"]["keyword"]["type"] == "keyword"
    there = {"n": {"type": "keyword"}, "part": {"properties": {"y": {"type": "long"}}}}
    x = {"type": "double", "ignore_malformed": True}
    assert lacking(wanted, there) == {"part": {"properties": {"x": x}}, "s": wanted["s"]}
    assert lacking(wanted, wanted) == {}


class Answering:
    """Stands for an index: gives the statuses of documents that a test has prepared, and notes what was sent."""

    name = "balances"

    def __init__(self, *answers: list[int], epoch: int = 1) -> None:
        self.answers, self.sent, self.epoch = list(answers), [], epoch

    def write(self, by, version, documents):
        self.sent.append((by, version, [each.key for each in documents]))
        statuses = self.answers.pop(0) if self.answers else [200] * len(documents)
        error = {"type": "some_exception", "reason": "because"}
        return [{"status": each} | ({"error": error} if each >= 400 else {}) for each in statuses]

    def place(self, realtime):
        return Place(self.epoch, None, "")

    def put_place(self, by, place, known):
        self.epoch = place.epoch
        return place

    def give_alias(self, alias, beginning):
        pass


def sink_on(index: Answering, monkeypatch) -> OpenSearchSink:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    sink = OpenSearchSink(KEYED)
    sink._writer.index, sink._writer.place = index, Place(1)
    return sink


def changes(*names: str) -> list[RowChange]:
    return [RowChange("insert", {"account": name}) for name in names]


def test_documents_that_a_server_is_too_busy_for_are_sent_again_in_their_order(monkeypatch):
    index = Answering([429, 200, 503, 200], [200, 429])
    sink_on(index, monkeypatch).write(7, changes("a", "b", "c", "d"))
    assert [keys for _, _, keys in index.sent] == [["a", "b", "c", "d"], ["a", "c"], ["c"]]
    assert {version for _, version, _ in index.sent} == {EPOCH + 7}


def test_a_document_that_somebody_else_wrote_is_written_with_a_higher_epoch(monkeypatch):
    index = Answering([200, 409])
    sink_on(index, monkeypatch).write(7, changes("a", "b"))
    assert index.sent == [
        ("balances-Writer-1", EPOCH + 7, ["a", "b"]),
        ("balances-Writer-2", 2 * EPOCH + 7, ["b"]),
    ]
    again = Answering(*[[409]] * 9)
    with pytest.raises(SinkError, match="key='a': another process writes balances again"):
        sink_on(again, monkeypatch).write(7, changes("a"))
    assert len(again.sent) == 4
    with pytest.raises(SinkError, match="another process has taken it over"):
        sink_on(Answering([409], epoch=2), monkeypatch).write(7, changes("a"))


def test_a_document_that_is_refused_is_named_and_one_that_is_blocked_is_waited_for(monkeypatch):
    with pytest.raises(SinkError, match=r"version=7, key='b': .*some_exception: because") as err:
        sink_on(Answering([200, 400]), monkeypatch).write(7, changes("a", "b"))
    assert not isinstance(err.value, SinkAway)
    with pytest.raises(SinkAway, match="does not now"):
        sink_on(Answering([403]), monkeypatch).write(7, changes("a"))


def test_a_key_that_no_document_can_have_is_named(monkeypatch):
    for key in ("", "é" * 257, "lakehouse-position"):
        with pytest.raises(SinkError, match="an id has 1 to 512 bytes"):
            sink_on(Answering(), monkeypatch).write(7, changes(key))


@pytest.mark.parametrize(
    ("status", "error", "away", "said"),
    [
        (401, "Unauthorized", False, "set user and password"),
        (403, {"type": "security_exception", "reason": "no permissions"}, False, "no permissions"),
        (403, {"type": "cluster_block_exception", "reason": "disk"}, True, "disk"),
        (429, {"type": "circuit_breaking_exception", "reason": "too large"}, True, "too large"),
        (502, "Bad Gateway", True, "Bad Gateway"),
        (500, {"type": "a", "reason": "b", "caused_by": {"type": "c", "reason": "d"}}, False, "a: b, by c: d"),
    ],
)  # fmt: skip
def test_an_answer_says_whether_it_is_worth_to_ask_again(status, error, away, said):
    found = refusal("target=t, PUT /t", status, error)
    assert isinstance(found, SinkAway) == away and said in str(found)


def test_user_and_password_are_read_from_the_environment(monkeypatch):
    server = Server("t", "https://${WHO}:${SECRET}@host:9200/search/")
    with pytest.raises(SinkError, match="variable=WHO"):
        server._prepare()
    monkeypatch.setenv("WHO", "me")
    monkeypatch.setenv("SECRET", "p@ss:/word")
    server._prepare()
    assert server._base == "https://host:9200/search"
    assert server._headers["Authorization"] == "Basic bWU6cEBzczovd29yZA=="


def test_a_name_with_dots_is_mapped_as_opensearch_gives_it_back():
    columns = [
        ("log.level", pa.int64()),
        ("log", pa.struct([("file.path", pa.bool_())])),
        ("n", pa.int64()),
    ]
    wanted = properties(pa.schema(columns))
    inner = {"level": {"type": "long"}, "file": {"properties": {"path": {"type": "boolean"}}}}
    assert wanted == {"log": {"properties": inner}, "n": {"type": "long"}}
    assert wanted == properties(pa.schema(reversed(columns)))
    assert not lacking(wanted, wanted)
