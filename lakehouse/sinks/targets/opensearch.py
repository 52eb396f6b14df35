"""An index of OpenSearch as a target: a document for each row of a table.

Searches see what was there at the last refresh. Only a commit refreshes the index, and the position is a document of it, so
a search sees both or neither. A document is written with an external version: the epoch of the follower, then the Delta
version. A write of an earlier one is refused by the index.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from lakehouse.backoff import Backoff
from lakehouse.declare.targets import Corrections, Position, RowChange, Sink, Target, columns_of
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks.base import position_of, replaced
from lakehouse.sinks.formats import encoded
from lakehouse.sinks.formats.encoded import Changes
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.sinks.targets.opensearch_index import PLACE, Document, Index, Place, properties
from lakehouse.sinks.targets.opensearch_server import kind, reason

if TYPE_CHECKING:
    import pyarrow as pa

_INDEX = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_LONGEST = 512  # bytes of an id
EPOCH = 10**10
"""The version of a document is the epoch of who wrote it times this, plus the Delta version."""
_BYTES, _DOCUMENTS = 5_000_000, 1_000  # that are sent at once
_PATIENCE = 60.0  # seconds for which a server may be too busy for the rest of what was sent
_PAUSES = Backoff(0.5, 10)
_HIGHER = 3  # epochs that a write tries
_BUSY, _NEWER, _BLOCKED = (429, 503), 409, 403
_GONE = ("index_not_found_exception", "invalid_index_name_exception")


@dataclass(frozen=True, slots=True)
class OpenSearchIndex(Target):
    """An index of OpenSearch that holds, for each key, the row of a table."""

    symbol: ClassVar[str] = "opensearch"
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
                    f"{self._named}: the mapping of {self._target.index} has _source switched off; create it with _source"
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
                        f"{self._named}, key={key!r}: an id has 1 to {_LONGEST} bytes and is not {PLACE}; choose other columns"
                    )
                yield Document(key, "" if change == "delete" else value)

    def _remove_rows(self) -> None:
        self._index.refresh()
        if keys := [document["_id"] for document in self._index.documents()]:
            self._writer.send(0, map(Document, keys), self.going_on)
            self._index.refresh()


class Writer:
    """Writes an index after it has claimed it."""

    def __init__(self, named: str, index: Index) -> None:
        self._named, self.index = named, index
        self.place = Place()

    @property
    def alias(self) -> str:
        """The alias of this process, which the next one removes.

        It has a capital letter, which no index may have: a write by an alias that is gone creates no index.
        """
        return f"{self.index.name}-Writer-{self.place.epoch}"

    def claim(self, former: Place) -> None:
        """Claims the index with a higher epoch than anyone before, and removes their aliases."""
        place = Place(former.epoch + 1, former.position)
        self.place = self.index.put_place(self.index.name, place, former)
        self.index.give_alias(self.alias, f"{self.index.name}-Writer-")

    def commit(self, position: Position) -> None:
        place = Place(self.place.epoch, position.to_json())
        try:
            self.place = self.index.put_place(self.alias, place, self.place)
        except SinkAway:
            self.check_is_own()
            raise
        self.index.refresh()

    def check_is_own(self) -> None:
        """Raises SinkError if another process has taken the target over."""
        place = self.index.place(realtime=True)
        if place is None:
            raise SinkAway(
                f"{self._named}: {self.index.name} was emptied or deleted; its follower fills it again"
            )
        if place.epoch != self.place.epoch:
            raise replaced(self._named, "its version was not committed")

    def send(
        self, version: int, documents: Iterable[Document], going_on: Callable[[], None]
    ) -> None:
        """Sends documents, and calls `going_on` meanwhile."""
        batch: list[Document] = []
        size = 0
        for document in documents:
            batch.append(document)
            size += len(document.key) + len(document.text)
            if size > _BYTES or len(batch) == _DOCUMENTS:
                self._send_batch(version, batch, going_on)
                going_on()
                batch, size = [], 0
        self._send_batch(version, batch, going_on)

    def _send_batch(
        self, version: int, documents: Sequence[Document], going_on: Callable[[], None]
    ) -> None:
        """Sends them until the index has each."""
        deadline, refusals, epochs = time.monotonic() + _PATIENCE, 0, 0
        while documents:
            number = self.place.epoch * EPOCH + version
            statuses = self.index.write(self.alias, number, documents)
            sent = zip(documents, statuses, strict=True)
            answers = [(document, answer) for document, answer in sent if "error" in answer]
            for document, answer in answers:
                self._check(version, document, answer)
            newer = [document for document, answer in answers if answer["status"] == _NEWER]
            busy = [document for document, answer in answers if answer["status"] in _BUSY]
            if newer:  # somebody else wrote them: a higher epoch is above that
                self.check_is_own()
                epochs += 1
                if epochs > _HIGHER:
                    raise SinkError(
                        f"{self._named}, key={newer[0].key!r}: another process writes {self.index.name} again and again; end it"
                    )
                self.claim(self.place)
            if busy:
                if time.monotonic() > deadline:
                    raise SinkAway(
                        f"{self._named}, version={version}: the server was too busy for {len(busy)} documents "
                        f"for {_PATIENCE:.0f} s; it is asked again"
                    )
                going_on()
                refusals += 1
                time.sleep(_PAUSES.after(refusals))
            again = {id(document) for document in (*newer, *busy)}
            documents = [document for document in documents if id(document) in again]  # in order

    def _check(self, version: int, document: Document, answer: dict) -> None:
        """Raises an error for an answer after which the same document need not be sent again."""
        if answer["status"] in (*_BUSY, _NEWER):
            return
        error = answer["error"]
        named = f"{self._named}, version={version}, key={document.key!r}"
        if kind(error) in _GONE:
            self.check_is_own()
            raise SinkAway(
                f"{named}: the follower writes by the alias {self.alias}, which is gone; it takes the index over again"
            )
        if answer["status"] == _BLOCKED:
            raise SinkAway(
                f"{named}: the index must take it and does not now ({reason(error)}); its follower asks again"
            )
        raise SinkError(
            f"{named}: {self.index.name} refuses this row ({reason(error)}); create an index that takes it, or change the column"
        )
