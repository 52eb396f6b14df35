"""The test kit of a source of one's own: its ranges are read again and again, in other pieces and orders, and compared.

    def test_my_source():
        assert_resettable(python_source("orders", Orders, schema=..., options={"path": "orders.db"}))

A stream does the same after a crash: it makes a new instance and reads a range again.
"""

import random
from collections.abc import Iterable, Mapping
from contextlib import closing

from lakehouse.declare.inputs.own_sources import PythonSource
from lakehouse.errors import SourceError
from lakehouse.runtime.own_source import OwnReader, Raw

Range = tuple[str, int, int]  # partition, start and end
Records = Mapping[str, Mapping[int, Raw]]  # partition -> offset -> record
_MOST = 20  # records of a piece


def assert_resettable(source: PythonSource, *, records: int = 1_000, seed: int = 0) -> int:
    """Reads ranges of a source of one's own again and again, and fails if a range gives other records than before.

        def test_my_source():
            assert_resettable(python_source("orders", Orders, schema=..., options={"path": "orders.db"}))

    A range is read whole and in pieces, in another order, after an iterator was left early, and by a new instance. An
    empty range must give nothing, and `latest_offset` must not go back. The source may grow meanwhile.

    :param source: it has records, at least one.
    :param records: of each partition the first and the last so many are read. Some numbers may be missing.
    :param seed: chooses how ranges are cut and ordered.
    :returns: how many records were compared.
    :raises AssertionError: names the range and the first record that differs, or what the class gave and must not.
    """
    try:
        return _ResetTest(source, records, seed).run()
    except SourceError as err:
        raise AssertionError(f"seed={seed}, {err}") from err


class _ResetTest:
    def __init__(self, source: PythonSource, records: int, seed: int) -> None:
        self.source, self.records, self.seed = source, records, seed
        self.choose = random.Random(seed)
        self.first: Records = {}

    def run(self) -> int:
        with closing(OwnReader(self.source)) as reader:
            ends = reader.ends()
            ranges = self._ranges(reader.begins(ends), ends)
            self.first = self._read(reader, ranges)
            count = sum(map(len, self.first.values()))
            if not count:
                raise self._failed("it has no record, so nothing was compared; give it some")
            self._read_again(reader, ranges)
            with closing(OwnReader(self.source)) as other:
                self._check_ends(ends, other.ends(), "as a new instance says it")
                self._compare(other, ranges, "by a new instance")
                self._compare(other, self._cut(ranges), "by a new instance, in pieces")
            self._check_ends(ends, reader.ends(), "when it is asked again")
        return count

    def _read_again(self, reader: OwnReader, ranges: list[Range]) -> None:
        self._compare(reader, ranges, "once more")
        self._compare(reader, self._cut(ranges), "in pieces")
        shuffled = self._cut(ranges)
        self.choose.shuffle(shuffled)
        self._compare(reader, shuffled, "in pieces, in another order")
        for piece in ranges:  # as a step that has enough
            left = reader.records(*piece)
            next(left, None)
            left.close()
        self._compare(reader, ranges, "after an iterator was left at its first record")
        for partition, start, end in ranges:
            for at in (start, end):
                for record in reader.records(partition, at, at):
                    raise self._failed(
                        f"partition={partition}, range=[{at}, {at}): it is empty, and read gave {_text(record)}"
                    )

    def _ranges(self, begins: Mapping[str, int], ends: Mapping[str, int]) -> list[Range]:
        """Returns the ranges of the first and the last records of each partition."""
        ranges = []
        for partition, end in ends.items():
            begin = begins[partition]
            if end - begin <= 2 * self.records:
                ranges.append((partition, begin, end))
            else:
                ranges += [
                    (partition, begin, begin + self.records),
                    (partition, end - self.records, end),
                ]
        return [piece for piece in ranges if piece[1] < piece[2]]

    def _cut(self, ranges: Iterable[Range]) -> list[Range]:
        pieces = []
        for partition, start, end in ranges:
            while start < end:
                until = min(end, start + self.choose.randint(1, _MOST))
                pieces.append((partition, start, until))
                start = until
        return pieces

    def _read(self, reader: OwnReader, pieces: Iterable[Range]) -> Records:
        by_partition: dict[str, dict[int, Raw]] = {}
        for piece in pieces:
            records = {record[0]: record for record in reader.records(*piece)}
            by_partition.setdefault(piece[0], {}).update(records)
        return by_partition

    def _compare(self, reader: OwnReader, pieces: Iterable[Range], how: str) -> None:
        for piece in pieces:
            partition, start, end = piece
            now = {record[0]: record for record in reader.records(*piece)}
            before = self.first[partition]
            for offset in sorted({*now, *(o for o in before if start <= o < end)}):
                if now.get(offset) != before.get(offset):
                    raise self._failed(
                        f"partition={partition}, range=[{start}, {end}): record {offset} is {_text(now.get(offset))} when the "
                        f"range is read {how}, and was {_text(before.get(offset))} at first; a range must always give the same "
                        "records"
                    )

    def _check_ends(self, before: Mapping[str, int], now: Mapping[str, int], how: str) -> None:
        for partition, end in before.items():
            if now.get(partition, -1) < end:
                raise self._failed(
                    f"partition={partition}, latest_offset={now.get(partition)}: so it is {how}, and it was {end} before; it "
                    "must never go back, nor may a partition be left out"
                )

    def _failed(self, what: str) -> AssertionError:
        return AssertionError(f"source={self.source.address}, seed={self.seed}, {what}")


def _text(record: Raw | None) -> str:
    if record is None:
        return "not there"
    _, key, value, timestamp = record
    beside = {"key": key, "timestamp": timestamp and timestamp.isoformat()}
    more = "".join(f", {name} {part!r}" for name, part in beside.items() if part is not None)
    return f"{value!r}{more}"
