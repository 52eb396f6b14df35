"""The writer of an index of OpenSearch: one process at a time, by an alias that goes with it."""

import time
from collections.abc import Callable, Iterable, Sequence

from lakehouse.backoff import Backoff
from lakehouse.declare.targets import Position
from lakehouse.errors import SinkAway, SinkError
from lakehouse.sinks.claims import replaced
from lakehouse.sinks.targets.opensearch_index import PLACE, Document, Index, Place
from lakehouse.sinks.targets.opensearch_server import kind, reason

EPOCH = 10**10
"""The version of a document is the epoch of who wrote it times this, plus the Delta version."""
_BYTES, _DOCUMENTS = 5_000_000, 1_000  # that are sent at once
_PATIENCE = 60.0  # seconds for which a server may be too busy for the rest of what was sent
_PAUSES = Backoff(0.5, 10)
_HIGHER = 3  # epochs that a write tries
_BUSY, _NEWER, _BLOCKED = (429, 503), 409, 403
_GONE = ("index_not_found_exception", "invalid_index_name_exception")


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
        done = self.index.put_place(self.index.name, place, former)
        if isinstance(done, str):
            raise SinkAway(
                f"{self._named}: one process writes a target, and another takes it over at this moment ({done}); the "
                "follower looks again who does"
            )
        self.place = done
        self.index.give_alias(self.alias, f"{self.index.name}-Writer-")

    def commit(self, position: Position) -> None:
        place = Place(self.place.epoch, position.to_json())
        done = self.index.put_place(self.alias, place, self.place)
        if isinstance(done, str):
            self.check_is_own()
            raise SinkAway(
                f"{self._named}: {PLACE} must be as this follower wrote it, and somebody changed it or restored an "
                f"older index ({done}); the follower goes on from what is there"
            )
        self.place = done
        self.index.refresh()

    def check_is_own(self) -> None:
        """Raises SinkError if another process has taken the target over."""
        place = self.index.place(realtime=True)
        if place is None:
            raise SinkAway(
                f"{self._named}: {self.index.name} must hold its position, and was emptied or deleted; its follower "
                "fills it again"
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
                        f"{self._named}, key={newer[0].key!r}: only its follower may write {self.index.name}, and "
                        "somebody else does again and again; end that"
                    )
                self.claim(self.place)
            if busy:
                if time.monotonic() > deadline:
                    raise SinkAway(
                        f"{self._named}, version={version}: the server must take each document, and was too busy for "
                        f"{len(busy)} of them for {_PATIENCE:.0f} s; its follower asks again"
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
            f"{named}: {self.index.name} must take each row and refuses this one ({reason(error)}); create an index whose "
            "mapping takes it, or change the column, and start the follower"
        )
