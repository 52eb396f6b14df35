"""One declaration of a table, filled by a stream and in batch, and certificates that both agree.

A module of tables imports what it needs from here: `from lakehouse import expect, ingest_table,
kafka, tumbling, window_table`.

The rooms, each above what it imports:

    errors, settings, addresses, ranges, durations, backoff, watermarks, freshness    values
    declare        declarations of a user
    storage        everything below the root
    runtime        Spark, its jars, Kafka, services and sources outside
    sinks          tables published to targets, version by version
    transform      the plan of a table: one for stream and batch
    batch          the batch run of a range
    stream         the streams; they stand on `batch`
    reconcile      stream and batch compared
    maintenance    compaction, retention, erasure, replay
    producers      senders of events to topics; `testing`: the test kit
    examples       the pipelines that ship: sensors and ads
    cli            the command line

This file makes `lakehouse` a regular package: without it, any other regular package of that name on
the path would replace it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakehouse.cli.query import read
    from lakehouse.declare.decorators import (
        ingest_table,
        keyed_table,
        reference_table,
        report_table,
        row_table,
        versioned_table,
        window_table,
    )
    from lakehouse.declare.expectations import expect
    from lakehouse.declare.inputs.changes import changes
    from lakehouse.declare.inputs.delta import delta_table
    from lakehouse.declare.inputs.files import files
    from lakehouse.declare.inputs.folder import folder
    from lakehouse.declare.inputs.iceberg import iceberg_table
    from lakehouse.declare.inputs.kafka import kafka
    from lakehouse.declare.inputs.own_sources import python_source
    from lakehouse.declare.inputs.readers import SourceReader, SourceRecord
    from lakehouse.declare.lookups import lookup
    from lakehouse.declare.queries import sql
    from lakehouse.declare.secrets import secret
    from lakehouse.declare.targets import Action, Position, RowChange, Sink, Target
    from lakehouse.declare.windows import around, count, duplicates, session, sliding, tumbling
    from lakehouse.sinks.targets.files import file_folder
    from lakehouse.sinks.targets.kafka import kafka_topic
    from lakehouse.sinks.targets.mail import mail
    from lakehouse.sinks.targets.opensearch import opensearch
    from lakehouse.sinks.targets.postgres import postgres
    from lakehouse.sinks.targets.redis import redis_keys
    from lakehouse.sinks.targets.webhook import webhook
    from lakehouse.transform.functions.patterns import (
        Pattern,
        begin,
        directly_followed_by,
        followed_by,
        not_followed_by,
    )
    from lakehouse.transform.functions.process import (
        KeyedCoProcess,
        KeyedProcess,
        OutputTag,
        Row,
        State,
        Timers,
        main_output,
        process,
        side_output,
    )
    from lakehouse.transform.versions import as_of_join

__version__ = "0.1.0"  # the only place: the package's metadata read it here

__all__ = [
    "Action",
    "KeyedCoProcess",
    "KeyedProcess",
    "OutputTag",
    "Pattern",
    "Position",
    "Row",
    "RowChange",
    "Sink",
    "SourceReader",
    "SourceRecord",
    "State",
    "Target",
    "Timers",
    "__version__",
    "around",
    "as_of_join",
    "begin",
    "changes",
    "count",
    "delta_table",
    "directly_followed_by",
    "duplicates",
    "expect",
    "file_folder",
    "files",
    "folder",
    "followed_by",
    "iceberg_table",
    "ingest_table",
    "kafka",
    "kafka_topic",
    "keyed_table",
    "lookup",
    "mail",
    "main_output",
    "not_followed_by",
    "opensearch",
    "postgres",
    "process",
    "python_source",
    "read",
    "redis_keys",
    "reference_table",
    "report_table",
    "row_table",
    "secret",
    "session",
    "side_output",
    "sliding",
    "sql",
    "tumbling",
    "versioned_table",
    "webhook",
    "window_table",
]
_HOMES = {  # imported when a name is asked for
    "cli.query": ("read",),
    "declare.decorators": (
        "ingest_table", "keyed_table", "reference_table", "report_table", "row_table", "versioned_table",
        "window_table",
    ),
    "declare.expectations": ("expect",),
    "declare.inputs.changes": ("changes",),
    "declare.inputs.delta": ("delta_table",),
    "declare.inputs.files": ("files",),
    "declare.inputs.folder": ("folder",),
    "declare.inputs.iceberg": ("iceberg_table",),
    "declare.inputs.kafka": ("kafka",),
    "declare.inputs.own_sources": ("python_source",),
    "declare.inputs.readers": ("SourceReader", "SourceRecord"),
    "declare.lookups": ("lookup",),
    "declare.queries": ("sql",),
    "declare.secrets": ("secret",),
    "declare.targets": ("Action", "Position", "RowChange", "Sink", "Target"),
    "declare.windows": ("around", "count", "duplicates", "session", "sliding", "tumbling"),
    "sinks.targets.files": ("file_folder",),
    "sinks.targets.kafka": ("kafka_topic",),
    "sinks.targets.mail": ("mail",),
    "sinks.targets.opensearch": ("opensearch",),
    "sinks.targets.postgres": ("postgres",),
    "sinks.targets.redis": ("redis_keys",),
    "sinks.targets.webhook": ("webhook",),
    "transform.functions.patterns": (
        "Pattern", "begin", "directly_followed_by", "followed_by", "not_followed_by",
    ),
    "transform.functions.process": (
        "KeyedCoProcess", "KeyedProcess", "OutputTag", "Row", "State", "Timers", "main_output", "process", "side_output",
    ),
    "transform.versions": ("as_of_join",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lakehouse' has no attribute {name!r}")
    return getattr(import_module(f"lakehouse.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
