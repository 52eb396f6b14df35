"""A source of one's own: its class is called and held against the contract, and its values become records of a topic.

An exception of the class means that the source is away (SourceAway). A value against the contract is an error of the
class, and lasts (SourceError).
"""

import base64
import json
import logging
import operator
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakehouse.declare.inputs.own_sources import PythonSource
from lakehouse.declare.inputs.readers import SourceReader, SourceRecord
from lakehouse.errors import SourceAway, SourceError
from lakehouse.ranges import text
from lakehouse.storage.foreign.foreign_records import RECORDS

_log = logging.getLogger(__name__)

_PARTITION_MOST, _OFFSET_MOST = (1 << 31) - 1, (1 << 63) - 1  # as `_arrival` has them
_SHOWN = 200  # characters of a value in a message
_EVERY = 1 << 62  # bytes
LOT = 10_000
"""Numbers that `read` is asked for at once, at most: it may make them all before it gives the first."""
Raw = tuple[int, bytes | None, bytes | None, datetime | None]
"""Offset, key, value and timestamp of a record."""
ANSWERS = 60.0  # seconds for a call of a class to give something; longer, it is said
Ends = Mapping[str, int]
"""Partition -> offset, with partitions as positions have them."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a source's class that has not returned yet. Of `read` it is for the next record."""

    source: str
    method: str
    where: str  # what it was asked for; empty of offsets
    since: datetime
    began: float

    def __str__(self) -> str:
        at = f", {self.where}" if self.where else ""
        return (
            f"source={self.source}{at}: it must answer {self.method} within {ANSWERS:.0f} s, and has not since "
            f"{text(self.since)}; nothing is read of it meanwhile, and nothing but the end of the process ends the call; "
            "give what the class waits for a time-out"
        )


_calls: dict[int, Call] = {}  # by the thread that makes it


def unanswered(thread: int | None) -> Call | None:
    """Returns the call that a thread makes, if it has waited for too long already."""
    call = _calls.get(thread or 0)
    return call if call and time.monotonic() - call.began > ANSWERS else None


@contextmanager
def _noted(source: str, method: str, where: str) -> Iterator[None]:
    """Shows other threads that this one makes the call, which may never return."""
    thread = threading.get_ident()
    around = _calls.get(thread)
    _calls[thread] = Call(source, method, where, datetime.now(UTC), time.monotonic())
    try:
        yield
    finally:
        if around:
            _calls[thread] = around
        else:
            del _calls[thread]


class OwnReader:
    """Calls the class of a source. An instance that has raised is closed, and the next call makes another one."""

    def __init__(self, source: PythonSource) -> None:
        self.source = source
        self._made: SourceReader | None = None

    def ends(self) -> dict[str, int]:
        """Returns the offsets after the last records, by partition. Raises SourceAway, SourceError."""
        with self._calling("latest_offset") as reader:
            given = reader.latest_offset()
        return _offsets(self.source, "latest_offset", given)

    def begins(self, ends: Ends) -> dict[str, int]:
        """Returns the first offsets of these partitions. Raises SourceAway, SourceError."""
        with self._calling("earliest_offset") as reader:
            given = reader.earliest_offset()
        offsets = _offsets(self.source, "earliest_offset", given)
        if not isinstance(given, Mapping):  # the same of all
            offsets = dict.fromkeys(ends, offsets["0"])
        begins = {partition: offsets.get(partition, 0) for partition in ends}
        for partition, offset in begins.items():
            if offset > ends[partition]:
                raise _wrong(
                    self.source,
                    f"partition={partition}, earliest_offset={offset}",
                    f"it is behind latest_offset, which is {ends[partition]}; of an empty partition both are the same",
                )
        return begins

    def records(self, partition: str, start: int, end: int) -> Generator[Raw, None, None]:
        """Yields the records of a range, one by one. Raises SourceAway, SourceError."""
        where, number = f"partition={partition}, range=[{start}, {end})", start
        sparse = self.source.reader.sparse
        for item in self._read(int(partition), start, end):
            record = item if isinstance(item, SourceRecord) else SourceRecord(item)
            if number == end:
                raise _wrong(
                    self.source,
                    f"{where}, record={_shown(item)}",
                    "it is one more than the range has; end is not part of it",
                )
            if sparse or record.offset is not None:
                most = end if sparse else number + 1
                number = _number(self.source, record.offset, number, most, where)
            yield number, *_raw(self.source, record, item, f"{where}, offset={number}")
            number += 1
        if number < end and not sparse:
            raise _wrong(
                self.source,
                where,
                f"read gave {number - start:,} records of {end - start:,}, so those from {number} on would be lost; give all "
                "that latest_offset has promised, or, if numbers may be missing, declare sparse = True and give each its offset",
            )

    def table(
        self,
        partition: str,
        start: int,
        end: int,
        size: int = _EVERY,
        seconds: float = float("inf"),
    ) -> tuple[pa.Table, int]:
        """Returns the records of a range as a topic would hand them out, and the offset after the last one.

        It ends before the range does once the values are about so many bytes, or took so long. Raises SourceAway, SourceError.
        """
        columns: list[list[Any]] = [[], [], [], []]
        reached, until = start, time.monotonic() + seconds

        def is_enough() -> bool:
            return size <= 0 or time.monotonic() > until

        while reached < end:
            last = min(reached + LOT, end)
            with closing(self.records(partition, reached, last)) as records:
                for record in records:
                    for column, value in zip(columns, record, strict=True):
                        column.append(value)
                    size -= len(record[1] or b"") + len(record[2] or b"")
                    reached = record[0] + 1
                    if is_enough():
                        break
                else:
                    reached = last
            if is_enough():
                break
        offsets, keys, values, timestamps = columns
        where = [int(partition)] * len(offsets)
        arrays = (keys, values, where, offsets, timestamps)
        named = [pa.array(array, f.type) for array, f in zip(arrays, RECORDS, strict=True)]
        return pa.Table.from_arrays(named, schema=RECORDS), reached

    def close(self) -> None:
        """Closes the instance, and logs its exception."""
        made, self._made = self._made, None
        if made is not None:
            self._let_go(made.close)

    def _let_go(self, close: Callable[[], None]) -> None:
        try:
            with _noted(self.source.address, "close", ""):
                close()
        except Exception as err:
            _log.warning(f"source={self.source.address}: its close {_raised(self.source, err)}")

    def _read(self, partition: int, start: int, end: int) -> Iterator[Any]:
        """Yields the items of `read`. An iterator that is left early is closed."""
        with self._calling("read", f"partition={partition}, range=[{start}, {end})") as reader:
            given = reader.read(partition, start, end)
            try:
                items = iter(given)
            except TypeError:
                items = None
        if items is None or isinstance(given, str | bytes | Mapping | SourceRecord):
            raise _wrong(
                self.source,
                f"read={_shown(given)}",
                "it must give the records of a range, one after another",
            )
        try:
            while True:
                with self._calling("read", f"partition={partition}, range=[{start}, {end})"):
                    item = next(items, _END)
                if item is _END:
                    return
                yield item
        finally:
            if hasattr(items, "close"):
                self._let_go(items.close)

    @contextmanager
    def _calling(self, method: str, where: str = "") -> Iterator[SourceReader]:
        """Yields the instance. An exception of the class becomes SourceAway, and the instance is closed."""
        try:
            with _noted(self.source.address, method, where):
                if self._made is None:
                    self._made = self.source.reader(**dict(self.source.options))
                yield self._made
        except Exception as err:
            self.close()
            at = f", {where}" if where else ""
            raise SourceAway(
                f"source={self.source.address}{at}: it must answer {method} and did not: it {_raised(self.source, err)}"
            ) from err


_END = object()


def _raised(source: PythonSource, err: Exception) -> str:
    """Returns the exception of the class, and its line in the class's file."""
    code = getattr(source.reader.read, "__code__", None)
    own = [
        frame
        for frame in traceback.extract_tb(err.__traceback__)
        if code and frame.filename == code.co_filename
    ]
    at = f" in line {own[-1].lineno} of {source.reader.__module__}" if own else ""
    reason = " ".join(str(err).split())[:_SHOWN]
    return f"raised {type(err).__name__}{f': {reason}' if reason else ''}{at}"


def _wrong(source: PythonSource, what: str, rule: str) -> SourceError:
    return SourceError(
        f"source={source.address}, {what}: {rule}; correct the class {source.class_name}"
    )


def _offsets(source: PythonSource, method: str, given: object) -> dict[str, int]:
    by_partition = given if isinstance(given, Mapping) else {0: given}
    offsets = {}
    for partition, offset in by_partition.items():
        number, next_one = _whole(partition, _PARTITION_MOST), _whole(offset, _OFFSET_MOST)
        if number is None or next_one is None:
            rule = "it must be an offset, an int of at least 0, or one for each partition by its number"
            raise _wrong(source, f"{method}={_shown(given)}", rule)
        offsets[str(number)] = next_one
    return offsets


def _number(source: PythonSource, offset: object, least: int, end: int, where: str) -> int:
    number = _whole(offset, _OFFSET_MOST)
    if number is None or not least <= number < end:
        rule = f"the next record of the range has an offset from {least} to {end - 1}"
        raise _wrong(source, f"{where}, offset={_shown(offset)}", rule)
    return number


def _raw(
    source: PythonSource, record: SourceRecord, item: object, where: str
) -> tuple[bytes | None, bytes | None, datetime | None]:
    key, value, at = record.key, record.value, record.timestamp
    if not isinstance(key, str | bytes | None):
        raise _wrong(source, f"{where}, key={_shown(key)}", "a key is text, bytes or None")
    if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
        rule = "a timestamp is a datetime with its time zone, or None"
        raise _wrong(source, f"{where}, timestamp={_shown(at)}", rule)

    def wrong(rule: str) -> SourceError:
        return _wrong(source, f"{where}, record={_shown(value)}", rule)

    if item is None or not isinstance(value, str | bytes | Mapping | None):
        raise wrong("a record is text, bytes or a mapping of fields, or a SourceRecord of one")
    if not isinstance(value, Mapping):
        return _bytes(key), _bytes(value), at
    if source.format != "json":
        raise wrong(
            f"the source has format={source.format!r}, and a mapping becomes JSON; give its text"
        )
    try:
        written = json.dumps(dict(value), default=_plain)
    except (TypeError, ValueError) as err:
        raise wrong(f"it cannot be written as JSON: {err}") from err
    return _bytes(key), written.encode(), at


def _whole(value: object, largest: int) -> int | None:
    """Returns a whole number from 0 to `largest`, also one of numpy's; None for all else."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # it says so
    except TypeError:
        return None
    return number if 0 <= number <= largest else None


def _bytes(value: str | bytes | None) -> bytes | None:
    """Returns text as UTF-8. Text that has no UTF-8 becomes bytes that are quarantined as such."""
    return value.encode(errors="surrogatepass") if isinstance(value, str) else value


def _plain(value: object) -> object:
    """Returns a value that JSON lacks as the parser of rows reads it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value is of the type {type(value).__name__}")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
