"""Lines of a web site's access log in the combined log format, made up or those of existing logs."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from random import Random
from typing import NamedTuple
from zlib import crc32

from lakehouse.producers.faults import Form, spoiled, with_faults
from lakehouse.producers.workload import (
    DUPLICATE,
    MALFORMED,
    ORDINARY,
    Moment,
    Producer,
    Record,
    Workload,
    draws,
    moments,
)

# networks of well-known owners, without the last part of the address; private ones have no country
NETWORKS = (
    ("8.8.8.", "US"),
    ("66.249.66.", "US"),
    ("2001:4860:4860::", "US"),
    ("81.2.69.", "GB"),
    ("193.99.144.", "DE"),
    ("195.135.220.", "DE"),
    ("2001:638::", "DE"),
    ("212.27.48.", "FR"),
    ("2a01:e00::", "FR"),
    ("200.160.2.", "BR"),
    ("202.12.27.", "JP"),
    ("139.130.4.", "AU"),
    ("196.25.1.", "ZA"),
    ("129.132.1.", "CH"),
    ("164.100.1.", "IN"),
    ("10.0.0.", "ZZ"),
    ("192.168.7.", "ZZ"),
)
AGENTS = (  # and whether it is a bot
    (
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
        False,
    ),
    (
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 Safari/605.1.15",
        False,
    ),
    ("Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0", False),
    ("Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:144.0) Gecko/20100101 Firefox/144.0", False),
    (
        "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 "
        "Mobile/15E148 Safari/604.1",
        False,
    ),
    (
        "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Mobile Safari/537.36",
        False,
    ),
    ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", True),
    ("Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)", True),
    ("curl/8.14.1", True),
)
PAGES = (  # the most wanted first
    "/",
    "/search",
    "/products",
    "/blog",
    "/pricing",
    "/docs",
    "/products/lamp",
    "/contact",
    "/blog/lakehouse",
    "/about",
    "/docs/start",
    "/products/chair",
    "/careers",
    "/blog/streaming",
    "/docs/reference",
    "/imprint",
    "/feed.xml",
    "/robots.txt",
    "/assets/site.css",
    "/assets/site.js",
    "/assets/logo.svg",
)
ANSWERS = (
    ("GET", 200, 0.85),
    ("GET", 304, 0.07),
    ("GET", 404, 0.04),
    ("POST", 200, 0.03),
    ("GET", 500, 0.01),
)
REFERRERS = (
    "-",
    "-",
    "https://www.example.org/",
    "https://www.example.org/blog?page=2",
    "https://duckduckgo.com/",
)
STAY_S, VISITORS, GAP_S = 600, 5_000, 1_800
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_QUOTED = r'"(?P<{}>[^"\\]*(?:\\.[^"\\]*)*)"'
_LINE = re.compile(
    r"(?P<ip>\S+) \S+ \S+ \[(?P<event_time>[^]]+)\] {} (?P<status>\d{{3}}) (?P<bytes>\d+|-) {} {}".format(
        *map(_QUOTED.format, ("request", "referrer", "agent"))
    )
)
_TIME = re.compile(r"(\d\d)/(\w{3})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)")


class Visitor(NamedTuple):
    ip: str
    country: str
    agent: str
    is_bot: bool

    @property
    def pseudonym(self) -> str:
        return sha256(f"{self.ip} {self.agent}".encode()).hexdigest()[:16]


class Request(NamedTuple):
    text: str  # from the method to the number of bytes, as it stands in the line
    path: str
    is_page: bool


def records(workload: Workload, start_ms: int, end_ms: int | None = None) -> Iterator[Record]:
    """The records sent in `[start_ms, end_ms)`, in the order of sending; keyed by address."""
    return with_faults(_good(workload, start_ms, end_ms), _FORM)


def malformed(kind: str, time_ms: int) -> Record:
    """One bad record of `kind`, sent at `time_ms` to partition 0."""
    good = next(_good(Workload(), time_ms, None))
    return spoiled(good._replace(kind=ORDINARY), kind, _FORM)


def of_lines(lines: Iterable[bytes], partitions: int) -> Iterator[Record]:
    """A record of each line of an access log, at the line's own time.

    What is no such line is MALFORMED, and now.
    """
    for line in lines:
        found = _LINE.fullmatch(line.decode(errors="replace"))
        event_ms = parsed(found["event_time"]) if found else None
        now = int(time.time() * 1000)
        if found is None or event_ms is None:
            yield Record(None, line, 0, now, None, MALFORMED)
            continue
        key = found["ip"].encode()
        # a record ahead of the clock would be waited for; one before 1970 is none that Kafka takes
        time_ms = event_ms if 0 <= event_ms <= now else now
        yield Record(key, line, crc32(key) % partitions, time_ms, event_ms, ORDINARY)


def expected_visitors(
    workload: Workload, start_ms: int, end_ms: int
) -> dict[tuple[str, int], tuple[int, int]]:
    """(requests, distinct visitors) by (country, start of the 5 min window in ms, every minute) in what `records` sends.

    Here and below: late or not, duplicates twice, without bots.
    """
    windows: dict[tuple[str, int], list[Visitor]] = defaultdict(list)
    for second, visitor, _ in _people(workload, start_ms, end_ms):
        minute = second - second % 60
        for start in range(minute - 240, minute + 60, 60):
            windows[visitor.country, start * 1000].append(visitor)
    return {window: (len(found), len(set(found))) for window, found in windows.items()}


def expected_page_views(
    workload: Workload, start_ms: int, end_ms: int
) -> dict[tuple[str, int], tuple[int, int]]:
    """(views, distinct visitors) by (path, start of the 5 min window in ms)."""
    windows: dict[tuple[str, int], list[Visitor]] = defaultdict(list)
    for second, visitor, request in _people(workload, start_ms, end_ms):
        if request.is_page:
            windows[request.path, (second - second % 300) * 1000].append(visitor)
    return {window: (len(found), len(set(found))) for window, found in windows.items()}


def expected_sessions(
    workload: Workload, start_ms: int, end_ms: int
) -> dict[tuple[str, int], tuple[int, int, str]]:
    """(time of the last page in ms, pages, country) by (visitor's pseudonym, time of the first page in ms)."""
    times: dict[Visitor, list[int]] = defaultdict(list)
    for second, visitor, request in _people(workload, start_ms, end_ms):
        if request.is_page:
            times[visitor].append(second)
    sessions = {}
    for visitor, found in times.items():
        found.sort()
        begins = [
            0,
            *(i for i, (a, b) in enumerate(pairwise(found), 1) if b - a > GAP_S),
            len(found),
        ]
        for first, after in pairwise(begins):
            session = visitor.pseudonym, found[first] * 1000
            sessions[session] = found[after - 1] * 1000, after - first, visitor.country
    return sessions


def stamp(ms: int) -> str:
    """An instant as access logs write it, to the second: 21/Nov/2026:10:00:00 +0000."""
    at = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{at.day:02d}/{_MONTHS[at.month - 1]}/{at.year:04d}:{at:%H:%M:%S} +0000"


@lru_cache(4096)  # a second has many lines
def parsed(text: str) -> int | None:
    """The instant in ms of a time as access logs write it, in whatever zone; None if it is none."""
    if not (found := _TIME.fullmatch(text)) or found[2] not in _MONTHS:
        return None
    day, _, year, hour, minute, second, sign, hours, minutes = found.groups()
    ahead = timedelta(hours=int(hours), minutes=int(minutes)) * (1 if sign == "+" else -1)
    month, zone = _MONTHS.index(found[2]) + 1, timezone
    try:
        at = datetime(
            int(year), month, int(day), int(hour), int(minute), int(second), tzinfo=zone(ahead)
        )
    except ValueError:  # the 31st of February, a zone a day away
        return None
    return int(at.timestamp()) * 1000


def _fields(line: bytes) -> dict[str, object]:
    found = _LINE.fullmatch(line.decode())
    assert found is not None, line  # it is one of ours
    return dict(found.groupdict())


def _line(fields: dict[str, object]) -> str:
    return (
        f'{fields["ip"] or "-"} - - [{fields.get("event_time", "-")}] "{fields["request"]}" {fields["status"]} '
        f'{fields["bytes"]} "{fields["referrer"]}" "{fields["agent"]}{fields.get("padding", "")}"'
    )


_FORM = Form("ip", stamp, _fields, _line)


def _good(workload: Workload, start_ms: int, end_ms: int | None) -> Iterator[Record]:
    second = lru_cache(4096)(stamp)  # a second is written once, not once an event
    referrers = draws(Random(f"referrers {workload.seed}"), REFERRERS)
    for ((_, time_ms, event_ms, kind), visitor, request), referrer in zip(
        _drawn(workload, start_ms, end_ms), referrers, strict=False
    ):
        at = second(event_ms // 1000 * 1000)
        value = f'{visitor.ip} - - [{at}] {request.text} "{referrer}" "{visitor.agent}"'.encode()
        key = visitor.ip.encode()
        yield Record(key, value, crc32(key) % workload.partitions, time_ms, event_ms, kind)


def _people(
    workload: Workload, start_ms: int, end_ms: int
) -> Iterator[tuple[int, Visitor, Request]]:
    """Second, visitor and request of all that is well-formed and not of a bot; duplicates twice."""
    for moment, visitor, request in _drawn(workload, start_ms, end_ms):
        if moment.kind != MALFORMED and not visitor.is_bot:
            for _ in range(2 if moment.kind == DUPLICATE else 1):
                yield moment.event_ms // 1000, visitor, request


def _drawn(
    workload: Workload, start_ms: int, end_ms: int | None
) -> Iterator[tuple[Moment, Visitor, Request]]:
    """Per request its moment, its visitor and what is requested.

    There are as many places as make each ask for something every 20 s. Every ten minutes, but not
    all at once, a place is taken by another visitor, who may have been there before.
    """
    rng = Random(workload.seed)
    asked, weights = _requests(rng)
    taken_by: Callable[[int, int], Visitor] = lru_cache(1 << 16)(
        lambda place, turn: _visitor(crc32(f"{workload.seed} {place} {turn}".encode()) % VISITORS)
    )
    places = draws(rng, range(20 * workload.rate))
    drawn = zip(
        moments(workload, start_ms, end_ms), places, draws(rng, asked, weights), strict=False
    )
    for moment, place, request in drawn:
        yield moment, taken_by(place, (moment.event_ms // 1000 + 7 * place) // STAY_S), request


def _visitor(number: int) -> Visitor:
    network, country = NETWORKS[number % len(NETWORKS)]
    agent, is_bot = AGENTS[crc32(b"%d" % number) % len(AGENTS)]
    return Visitor(f"{network}{number // len(NETWORKS) % 250 + 1}", country, agent, is_bot)


def _requests(rng: Random) -> tuple[list[Request], list[float]]:
    """All there is to ask for, and how often it is: the second page half as often as the first, and so on (Zipf)."""
    asked, weights = [], []
    for rank, path in enumerate(PAGES, 1):
        size, target = rng.randint(500, 50_000), f"{path}?q=table" if path == "/search" else path
        for method, status, share in ANSWERS:
            text = f'"{method} {target} HTTP/1.1" {status} {"-" if status == 304 else size}'
            asked.append(Request(text, path, method == "GET" and status < 400 and "." not in path))
            weights.append(share / rank)
    return asked, weights


PRODUCER = Producer(
    "access-log",
    Workload(rate=50, disorder_ms=2_000, late_share=0.001, malformed_share=0.001, partitions=3),
    records,
    malformed,
    of_lines,
)
