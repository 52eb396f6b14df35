"""Ad events as the code of the Yahoo Streaming Benchmark defines them: seven strings, 100 campaigns of 10 ads.

One difference: its clock skew of -49 to +50 ms is here 0 to 99 ms before the moment of sending, as
wide and never ahead of the record's own timestamp.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from itertools import product
from random import Random
from uuid import UUID

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

AD_TYPES = ("banner", "modal", "sponsored-search", "mail", "mobile")
EVENT_TYPES = ("view", "click", "purchase")
WINDOW_MS = 10_000
_FORM = Form("ad_id", str)


def ad_campaigns() -> dict[str, str]:
    """The campaign of each ad, from the checked-in file that the pipeline joins with too."""
    with (
        files("lakehouse.examples.ads").joinpath("ad_campaigns.csv").open(encoding="utf-8") as file
    ):
        return {row["ad_id"]: row["campaign_id"] for row in csv.DictReader(file)}


def records(workload: Workload, start_ms: int, end_ms: int | None = None) -> Iterator[Record]:
    """The records sent in `[start_ms, end_ms)`, round robin over the partitions, in the order of sending."""
    return with_faults(_good(workload, start_ms, end_ms), _FORM)


def malformed(kind: str, time_ms: int) -> Record:
    """One bad record of `kind`, sent at `time_ms` to partition 0."""
    good = next(_good(Workload(), time_ms, None))
    return spoiled(good._replace(kind=ORDINARY), kind, _FORM)


def expected_views(workload: Workload, start_ms: int, end_ms: int) -> dict[tuple[str, int], int]:
    """Views by (campaign, start of the 10 s window in ms) in what `records` sends: late or not, duplicates twice."""
    views: Counter[tuple[str, int]] = Counter()
    for moment, _, (_, campaign) in _drawn(workload, start_ms, end_ms):
        if campaign is not None and moment.kind != MALFORMED:
            window = moment.event_ms - moment.event_ms % WINDOW_MS
            views[campaign, window] += 2 if moment.kind == DUPLICATE else 1
    return dict(views)


def _good(workload: Workload, start_ms: int, end_ms: int | None) -> Iterator[Record]:
    partitions = workload.partitions
    for (index, time_ms, event_ms, kind), who, (what, _) in _drawn(workload, start_ms, end_ms):
        value = f'{who}{what}{event_ms}", "ip_address": "1.2.3.4"}}'.encode()
        yield Record(None, value, index % partitions, time_ms, event_ms, kind)


def _drawn(
    workload: Workload, start_ms: int, end_ms: int | None
) -> Iterator[tuple[Moment, str, tuple[str, str | None]]]:
    """Per event its moment, its first half, and its second half with the campaign if it is a view.

    Halves are written once and drawn whole: every combination of their fields is as likely as in
    single draws.
    """
    rng = Random(workload.seed)
    users, pages = _ids(rng, 100), _ids(rng, 100)
    who = [f'{{"user_id": "{user}", "page_id": "{page}", ' for user, page in product(users, pages)]
    what = [
        (
            f'"ad_id": "{ad}", "ad_type": "{ad_type}", "event_type": "{event_type}", "event_time": "',
            campaign if event_type == "view" else None,
        )
        for (ad, campaign), ad_type, event_type in product(
            ad_campaigns().items(), AD_TYPES, EVENT_TYPES
        )
    ]
    return zip(moments(workload, start_ms, end_ms), draws(rng, who), draws(rng, what), strict=False)


def _ids(rng: Random, n: int) -> list[str]:
    return [str(UUID(int=rng.getrandbits(128), version=4)) for _ in range(n)]


PRODUCER = Producer(
    "ad-events",
    Workload(rate=1_000, disorder_ms=99, late_share=0.000_01, partitions=4),
    records,
    malformed,
)
