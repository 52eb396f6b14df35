"""An index of OpenSearch, as a target uses it: its fields, its documents, and the one among them that holds the position.

A document holds its row as `encoding` writes it, whatever the mapping. The mapping decides what a search finds.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse.errors import SinkAway, SinkError
from lakehouse.sinks.formats.kinds import Kind, kind_of
from lakehouse.sinks.targets.opensearch_server import Server, kind, reason

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = "lakehouse-position"
"""The document with epoch and position, and its only field."""
READ_AT_ONCE = 1_000  # documents
_KEPT = "5m"  # for which the server keeps what a reader sees between two reads
_FIELD = {PLACE: {"type": "object", "enabled": False}}  # no search finds it
_MADE = {
    "settings": {"number_of_shards": 1, "refresh_interval": "-1"},
    "mappings": {"dynamic": "strict", "properties": _FIELD},
}
_THERE = "resource_already_exists_exception"  # another process was faster
Properties = dict[str, dict[str, Any]]
_WORDS = 256  # characters up to which a text can be sorted and grouped by, as where an index maps a text by itself
_DOUBLE = {"type": "double", "ignore_malformed": True}
# integers and floats of every width are mapped alike, so that a column may be widened
_FIELDS: dict[Kind | None, dict[str, Any]] = {
    "map": {"type": "object", "enabled": False},  # else each key would be a field of its own
    # a document has a decimal as text; infinite doubles are held, and found by no search
    "decimal": _DOUBLE,
    "float32": _DOUBLE,
    "floating": _DOUBLE,
    "boolean": {"type": "boolean"},
    "int64": {"type": "long"},
    "integer": {"type": "long"},
    "timestamp": {"type": "date"},
    "date": {"type": "date"},
    "binary": {"type": "binary"},
}
_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": _WORDS}}}


@dataclass(frozen=True, slots=True)
class Place:
    """The document with the position, and the condition under which a write replaces it and no other."""

    epoch: int = 0
    position: str | None = None
    unchanged: str = "op_type=create"


@dataclass(frozen=True, slots=True)
class Document:
    """A row by its key; without text, its deletion."""

    key: str
    text: str = ""

    def line(self, version: int) -> str:
        """Returns the lines of a request for several documents."""
        target = {"_id": self.key, "version": version, "version_type": "external_gte"}
        action = json.dumps({"index" if self.text else "delete": target}, ensure_ascii=False)
        return f"{action}\n{self.text}\n" if self.text else f"{action}\n"


class Index:
    """One index, which may not be there yet."""

    def __init__(self, target: str, name: str, url: str) -> None:
        self.name = name
        self.server = Server(target, url)
        self._named = f"target={target}, index={name}"

    def make(self) -> int:
        """Creates the index, or fits one that is there, and returns the number of its shards.

        Raises SinkError for one with documents of somebody else.
        """
        index = self.described()
        if not index:
            status, answer = self.server.ask("PUT", f"/{self.name}", _MADE, (400,))
            if status == 400 and kind(answer.get("error")) != _THERE:
                raise SinkError(
                    f"{self._named}: the server does not create it ({reason(answer.get('error'))}); choose another name"
                )
            index = self.described()
        elif self.place(realtime=True) is None:
            self._check_is_empty()
        of_index = index["settings"]["index"]
        if of_index.get("refresh_interval") != "-1":  # else others would see a part of a version
            given = {"index": {"refresh_interval": "-1"}}
            self.server.ask("PUT", f"/{self.name}/_settings", given)
        self._map(lacking(_FIELD, index["mappings"].get("properties", {})))
        return int(of_index["number_of_shards"])

    def described(self) -> dict[str, Any]:
        """Returns aliases, mappings and settings of the index; nothing if it is not there."""
        status, indexes = self.server.ask("GET", f"/{self.name}", answers=(404,))
        if status == 404:
            return {}
        if self.name not in indexes:
            raise SinkError(
                f"{self._named}: it is another name of {', '.join(sorted(indexes))}; publish to an index by its own name"
            )
        return indexes[self.name]

    def add_fields(self, wanted: Properties) -> None:
        """Adds the fields that it lacks. Raises SinkError if it cannot have them."""
        self._map(lacking(wanted, self.described()["mappings"].get("properties", {})))

    def refresh(self) -> None:
        """Lets searches see all writes so far."""
        if failed := self.server.ask("POST", f"/{self.name}/_refresh")[1]["_shards"]["failed"]:
            raise SinkAway(
                f"{self._named}: all shards must be refreshed, and {failed} were not; its follower does it again"
            )

    def place(self, realtime: bool) -> Place | None:
        """Returns the document with the position: as it was written last, or as searches see it."""
        path = f"/{self.name}/_doc/{PLACE}?realtime={str(realtime).lower()}"
        status, document = self.server.ask("GET", path, answers=(404,))
        if status == 404:
            return None
        try:
            place = document["_source"][PLACE]
            return Place(int(place["epoch"]), place["position"], _unchanged(document))
        except (KeyError, TypeError, ValueError) as err:
            raise SinkError(
                f"{self._named}: its document {PLACE} lacks epoch or position ({err!r}); delete the index: it is filled again"
            ) from err

    def put_place(self, by: str, place: Place, former: Place) -> Place:
        """Writes the document by the name `by` and returns it. Raises SinkAway if it is not as `former`."""
        document = {PLACE: {"epoch": place.epoch, "position": place.position}}
        path = f"/{by}/_doc/{PLACE}?{former.unchanged}"
        status, answer = self.server.ask("PUT", path, document, (400, 404, 409))
        if status in (400, 404, 409):
            why = reason(answer.get("error"))
            raise SinkAway(
                f"{self._named}: another process changed {PLACE}, or an older index was restored ({why}); it is asked again"
            )
        return Place(place.epoch, place.position, _unchanged(answer))

    def give_alias(self, alias: str, beginning: str) -> None:
        """Gives the index an alias, and removes all others with that beginning."""
        aliases = self.server.ask("GET", f"/{self.name}/_alias")[1][self.name]["aliases"]
        former = [name for name in aliases if name.startswith(beginning)]
        steps = [{"remove": {"index": self.name, "alias": name}} for name in former]
        steps.append({"add": {"index": self.name, "alias": alias}})
        self.server.ask("POST", "/_aliases", {"actions": steps})

    def write(self, by: str, version: int, documents: Sequence[Document]) -> list[dict[str, Any]]:
        """Returns a status for each document, and an error if it is not as it was sent."""
        body = "".join(document.line(version) for document in documents)
        path = f"/{by}/_bulk?filter_path=error,items.*.status,items.*.error"
        status, answer = self.server.ask("POST", path, body, (400, 404, 429))
        if status != 200:
            return [{"status": status, "error": answer.get("error")}] * len(documents)
        return [next(iter(item.values())) for item in answer["items"]]

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yields the documents as searches see them at this moment, without the one that holds the position."""
        body = {
            "size": READ_AT_ONCE,
            "sort": ["_doc"],
            "version": True,
            "query": {"bool": {"must_not": {"ids": {"values": [PLACE]}}}},
        }
        path = f"/{self.name}/_search?scroll={_KEPT}"
        status, page = self.server.ask("POST", path, body, (404,))
        if status == 404:
            return
        try:
            while True:
                if page["timed_out"] or page["_shards"]["failed"]:
                    raise SinkAway(
                        f"{self._named}: all shards must be read, and {page['_shards']['failed']} were not; look again later"
                    )
                if not (hits := page["hits"]["hits"]):
                    return
                yield from hits
                again = {"scroll": _KEPT, "scroll_id": page["_scroll_id"]}
                page = self.server.ask("POST", "/_search/scroll", again)[1]
        finally:
            ended = {"scroll_id": page["_scroll_id"]}
            self.server.ask("DELETE", "/_search/scroll", ended, (404,))

    def _check_is_empty(self) -> None:
        self.refresh()
        if count := self.server.ask("GET", f"/{self.name}/_count")[1]["count"]:
            raise SinkError(
                f"{self._named}: it has {count} documents and no position; publish to an index that is empty or not there"
            )

    def _map(self, fields: Properties) -> None:
        if not fields:
            return
        given = {"properties": fields}
        status, answer = self.server.ask("PUT", f"/{self.name}/_mapping", given, (400,))
        if status == 400:
            raise SinkError(
                f"{self._named}, columns={', '.join(fields)}: it must take them as fields, and does not "
                f"({reason(answer.get('error'))}); rename the columns, or publish to another index"
            )


def _unchanged(document: dict[str, Any]) -> str:
    return f"if_seq_no={document['_seq_no']}&if_primary_term={document['_primary_term']}"


def properties(columns: "Iterable[pa.Field]") -> Properties:
    """Returns the fields of a table's columns. A name with dots is a field of objects, as OpenSearch itself reads it."""
    mapped: Properties = {}
    for column in columns:
        *around, name = column.name.split(".")
        fields = mapped
        for part in around:
            fields = fields.setdefault(part, {}).setdefault("properties", {})
        own = _mapped(column.type)
        inner = fields.get(name, {}).get("properties", {})
        fields[name] = own | ({"properties": own.get("properties", {}) | inner} if inner else {})
    return mapped


def lacking(wanted: Mapping[str, Any], existing: Mapping[str, Any]) -> Properties:
    """Returns the fields of `wanted` that an index lacks, also within structs. A field mapped otherwise is the user's choice."""
    missing: Properties = {}
    for name, field in wanted.items():
        if name not in existing:
            missing[name] = field
        elif "properties" in field:
            within = lacking(field["properties"], existing[name].get("properties", {}))
            missing |= {name: {"properties": within}} if within else {}
    return missing


def _mapped(type_: "pa.DataType") -> dict[str, Any]:
    kind = kind_of(type_)
    if kind == "list":
        return _mapped(type_.value_type)  # every field may have several values
    if kind == "struct":
        return {"properties": properties(type_)}
    return _FIELDS.get(kind, _TEXT)
