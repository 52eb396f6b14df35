"""An index of OpenSearch as a target: a document for each row of a table.

Searches see what was there at the last refresh. Only a commit refreshes the index, and the position is a document of it, so
a search sees both or neither. A document is written with an external version: the epoch of the follower, then the Delta
version. A write of an earlier one is refused by the index.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lakehouse.declare.targets import Corrections, Position, RowChange, Sink, Target, columns_of
from lakehouse.errors import DeclarationError, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks.claims import position_of
from lakehouse.sinks.formats import encoded
from lakehouse.sinks.formats.encoded import Changes
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.sinks.targets.opensearch_index import PLACE, Document, Index, Place
from lakehouse.sinks.targets.opensearch_mapping import properties
from lakehouse.sinks.targets.opensearch_writer import EPOCH, Writer

if TYPE_CHECKING:
    import pyarrow as pa

_INDEX = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_LONGEST = 512  # bytes of an id


@dataclass(frozen=True, slots=True)
class OpenSearchIndex(Target):
    """An index of OpenSearch that holds, for each key, the row of a table."""

    index: str
    url: str = field(repr=False)

    @property
    def place(self) -> str:
        return f"opensearch {self.url} {self.index}\n"

    def sink(self, settings: Settings, table: str) -> "OpenSearchSink":
        return OpenSearchSink(self)


def opensearch(
    index: str,
    *,
    key: str | Sequence[str],
    url: str = "http://localhost:9200",
    name: str = "",
    corrections: Corrections = "send",
) -> OpenSearchIndex:
    """An index of OpenSearch to which a table is published: `publish=[opensearch(...)]`.

        @keyed_table(layer="gold", keys=["account"], publish=[opensearch("balances", key="account")])
        def balances(payment_events: DataFrame) -> DataFrame: ...

    The row of account `a` is the document with the id `a`. Searches see a version when all of it is there. The index is
    created with a field for each column, unless it is there; fields that it lacks are added.

    :param index: its name, in small letters. All its documents belong to the target.
    :param key: the columns that identify a row: the text of one, or a JSON object of several.
    :param url: `http://` or `https://`, with user and password where the server asks for them. `${NAME}` is the
        variable of that name in the environment of the follower.
    :param name: names the target in commands. Default: `index`.
    :param corrections: "send", "hold" or "ignore" what changes rows that were final before.
    :raises DeclarationError: for values that cannot be used.
    """
    parts = urlsplit(url)
    if not _INDEX.fullmatch(index):
        raise DeclarationError(
            f"index={index!r}: small letters, digits, '.', '_' and '-', beginning with a letter or a digit; rename it"
        )
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise DeclarationError(
            f"target={name or index}, url: an address is http://HOST:PORT or https://HOST:PORT; write it so"
        )
    return OpenSearchIndex(name or index, columns_of(key), corrections, index, url)


class OpenSearchSink(Sink):
    """Writes a table to OpenSearch."""

    def __init__(self, target: OpenSearchIndex) -> None:
        self._target = target
        self._named = f"target={target.name}"
        self._index = Index(target.name, target.index, target.url)
        self._writer = Writer(self._named, self._index)
        self._shards = 1

    def open(self) -> None:
        self._shards = self._index.make()
        place = self._index.place(realtime=True) or Place()
        seen = self._index.place(realtime=False) or Place()
        self._writer.claim(place)
        if place.position is None:
            self._remove_rows()  # of a process that died before it had committed
        elif place.position != seen.position:
            self._index.refresh()  # it died when all of a version was written, and not to be seen

    def position(self) -> Position | None:
        place = self._index.place(realtime=False) or Place()
        return position_of(self._target.name, f"the document {PLACE}", place.position)

    def columns(self, schema: "pa.Schema") -> None:
        if PLACE in schema.names:
            raise SinkError(
                f"{self._named}, column={PLACE}: the field of the position has that name; rename the column"
            )
        self._index.add_fields(properties(schema))

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        # of a key the last one counts: an index keeps their order
        self._writer.send(version, self._documents(encoded.of(changes)), self.going_on)

    def commit(self, position: Position) -> None:
        self._writer.commit(position)

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        for document in self._index.documents():
            if "_source" not in document:
                raise SinkError(
                    f"{self._named}: {self._target.index} must keep documents as they were sent, and its mapping has "
                    "_source switched off; create it with _source"
                )
            epoch, of_version = divmod(document["_version"], EPOCH)
            yield (
                document["_id"],
                value_of(document["_source"]),
                epoch > 0 and of_version <= version,
            )

    def mend(self) -> None:
        self._index.refresh()  # so that rows of a write that was cut are seen, and repaired

    def remarks(self) -> Sequence[str]:
        if self._shards == 1:
            return ()
        return (
            f"{self._target.index} has {self._shards} shards, which are refreshed one after another: for a moment a search may "
            "see a version in some of them only",
        )

    def close(self) -> None:
        self._index.server.close()

    def _documents(self, changes: Changes) -> Iterator[Document]:
        for part in changes.parts():
            keys = part.keys(self._target.key)
            for change, key, value in zip(part.kinds, keys, part.values(), strict=True):
                if not key or key == PLACE or len(key.encode()) > _LONGEST:
                    raise SinkError(
                        f"{self._named}, key={key!r}: it becomes the id of a document, which has 1 to {_LONGEST} bytes and is "
                        f"not {PLACE}; choose other columns, or leave such rows out of the table"
                    )
                yield Document(key, "" if change == "delete" else value)

    def _remove_rows(self) -> None:
        self._index.refresh()
        if keys := [document["_id"] for document in self._index.documents()]:
            self._writer.send(0, map(Document, keys), self.going_on)
            self._index.refresh()
