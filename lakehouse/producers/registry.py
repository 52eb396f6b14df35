"""The producers of pipelines: `PRODUCER` of the module `producer` beside a module `tables`, and the topics they fill."""

import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate

from lakehouse.declare.modules import extend_path, pipeline_of
from lakehouse.errors import SettingsError
from lakehouse.producers.workload import Producer
from lakehouse.runtime import kafka_broker
from lakehouse.settings import Settings

# history has old timestamps: Kafka's seven days would delete it soon after it was sent
TOPIC = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}


def producer(settings: Settings, pipeline: str | None) -> Producer:
    """Returns the producer of a pipeline of the settings; raises SettingsError if it has none."""
    if own := find(settings, pipeline):
        return own
    names = dict.fromkeys(pipeline_of(tables) for tables in settings.tables if _beside(tables))
    having = ", ".join(name for name in names if name != pipeline)
    raise SettingsError(
        f"pipeline={pipeline!r}, tables={', '.join(settings.tables)}: a producer is PRODUCER of the module `producer` beside "
        f"`tables`, and there is one for {having or 'no pipeline'}; name such a pipeline, or give --topic and --file"
    )


def find(settings: Settings, pipeline: str | None) -> Producer | None:
    """Returns the producer of a pipeline of the settings, None if it has none; imports no other producer."""
    extend_path(settings)
    of_pipeline = (tables for tables in settings.tables if pipeline_of(tables) == pipeline)
    return next(filter(None, map(producer_beside, of_pipeline)), None)


def producer_beside(tables: str) -> Producer | None:
    """Returns the producer beside a module of tables, that of `shop.producer` for `shop.tables`; None if there is none.

    Raises SettingsError for a PRODUCER that is no Producer, and any error of the module.
    """
    module = _beside(tables)
    # by name: a job that imports the tables of a pipeline needs no producer
    value = getattr(import_module(module), "PRODUCER", None) if module else None
    if value is None or isinstance(value, Producer):
        return value
    raise SettingsError(
        f"PRODUCER={value!r} of {module}: it must be a lakehouse.producers.workload.Producer; make it one, or rename it"
    )


def _beside(tables: str) -> str:
    """Returns the name of the module `producer` beside a module `tables`; empty if there is none. Runs neither."""
    package, _, name = tables.rpartition(".")
    if not package or name != "tables":
        return ""
    path: Sequence[str] | None = None
    module = f"{package}.producer"
    # package by package: `importlib.util.find_spec` would run those that the module is in
    for part in accumulate(module.split("."), "{}.{}".format):
        specs = (finder.find_spec(part, path) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec is None:
            return ""
        path = spec.submodule_search_locations or ()
    return module


def ensure_topics(settings: Settings, chosen: Producer, partitions: int) -> tuple[str, ...]:
    """Creates the missing topics of a producer and returns their names. Raises BrokerError."""
    compacted = kafka_broker.ensure_topics(
        settings, dict.fromkeys(chosen.compacted, 1), TOPIC | {"cleanup.policy": "compact"}
    )
    ordinary = dict.fromkeys((chosen.topic, *chosen.beside), partitions)
    return kafka_broker.ensure_topics(settings, ordinary, TOPIC) + compacted
