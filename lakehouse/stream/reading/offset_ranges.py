"""Ranges of offsets in several partitions: their sizes, and the same share of each."""

from collections.abc import Iterable

from lakehouse.stream.reading.offsets import Offsets


def between(begin: Offsets, end: Offsets) -> int:
    """Returns how many offsets lie between; a partition that ends before it begins has none."""
    return sum(
        max(offset - begin.get(topic, {}).get(p, 0), 0)
        for topic, partitions in end.items()
        for p, offset in partitions.items()
    )


def up_to(ends: Offsets, until: Offsets) -> Offsets:
    """Returns the ends, none after that of `until`, which may lack some of them."""
    return {
        t: {p: min(end, until.get(t, {}).get(p, end)) for p, end in partitions.items()}
        for t, partitions in ends.items()
    }


def part(of: Offsets, addresses: Iterable[str]) -> Offsets:
    """Returns the offsets of some addresses."""
    return {address: of[address] for address in addresses if address in of}


def limited(begin: Offsets, end: Offsets, most: int) -> Offsets:
    """Returns the ends of the same share of each partition, so that none gets ahead: `most` in all, but one each at least."""
    if (waiting := between(begin, end)) <= most:
        return end

    def share(first: int, last: int) -> int:
        return first + max((last - first) * most // waiting, min(last - first, 1))

    return {
        t: {p: share(begin[t][p], offset) for p, offset in parts.items()}
        for t, parts in end.items()
    }
