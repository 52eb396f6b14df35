"""The pipelines that ship: for each its tables, and what fills their topics.

sensors   readings of thermometers, and their averages
alerts    alerts on the readings; its topic is that of `sensors`
ads       the Yahoo Streaming Benchmark: ad events, and views per campaign
clicks    click-through rates; its topic is that of `ads`
visits    the access log of a web site: visitors, sessions, pages
patterns  patterns with repetition over logins and trades, which you send
bank      transfers between accounts, and balances
fraud     alerts on the transfers; its topics are those of `bank`
shop      products, and which of them are viewed together
network   the quality of radio cells, and addresses that try to break in
nexmark   an auction house, and the 24 queries of Nexmark
"""

from importlib import import_module

from lakehouse.errors import SettingsError
from lakehouse.producers.workload import Producer

WITH_PRODUCER = ("sensors", "ads", "visits", "bank", "shop", "network", "nexmark")


def producer(pipeline: str) -> Producer:
    """The producer of a shipped pipeline; raises SettingsError for any other name."""
    if pipeline not in WITH_PRODUCER:
        raise SettingsError(
            f"pipeline={pipeline!r}: there are producers for {', '.join(WITH_PRODUCER)}; name one of them"
        )
    # by name: a job that imports the tables of one example needs the producer of none
    return import_module(f"lakehouse.examples.{pipeline}.producer").PRODUCER
