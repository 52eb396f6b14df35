"""One declaration of a table, filled by a stream and in batch, and certificates that both agree.

A module of tables takes what it needs from here: `from lakehouse import expect, kafka, table,
tumbling`.

The rooms, each above what it imports:

    errors, settings, addresses, ranges, durations, watermarks, freshness, cron    values
    declare        what a user declares
    storage        what is kept below the root
    runtime        Spark, its jars, Kafka, services and sources outside
    sinks          tables published to targets, version by version
    transform      the plan of a table: one for stream and batch
    batch          the batch run of a range
    stream         the streams; they stand on `batch`
    reconcile      stream and batch compared
    maintenance    compaction, retention, erasure, replay
    producers      what sends events to topics; `testing`: the test kit
    examples       the pipelines that ship: their tables, and what fills their topics
    cli            the command line

This file makes `lakehouse` a regular package: without it, any other regular package of that name on
the path would replace it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakehouse.declare.inputs.iceberg import iceberg_table
    from lakehouse.declare.inputs.own_sources import python_source
    from lakehouse.declare.inputs.readers import SourceReader, SourceRecord
    from lakehouse.declare.secrets import secret
    from lakehouse.declare.table import (
        around,
        changes,
        count,
        delta_table,
        duplicates,
        expect,
        files,
        folder,
        kafka,
        lookup,
        report,
        session,
        sliding,
        sql_table,
    )
    from lakehouse.declare.table import table as table
    from lakehouse.declare.table import tumbling as tumbling
    from lakehouse.declare.targets import Action, Position, RowChange, Sink, Target
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

__version__ = "0.1.0"  # the only place: the package's metadata take it from here

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
    "kafka",
    "kafka_topic",
    "lookup",
    "mail",
    "main_output",
    "not_followed_by",
    "opensearch",
    "postgres",
    "process",
    "python_source",
    "redis_keys",
    "report",
    "secret",
    "session",
    "side_output",
    "sliding",
    "sql_table",
    "table",
    "tumbling",
    "webhook",
]
_ELSEWHERE = {  # what a declaration needs not have: it is imported when it is asked for
    **dict.fromkeys(
        ("Pattern", "begin", "directly_followed_by", "followed_by", "not_followed_by"),
        "transform.functions.patterns",
    ),
    **dict.fromkeys(
        (
            "KeyedCoProcess",
            "KeyedProcess",
            "OutputTag",
            "Row",
            "State",
            "Timers",
            "main_output",
            "process",
            "side_output",
        ),
        "transform.functions.process",
    ),
    "as_of_join": "transform.versions",
    **dict.fromkeys(("Action", "Position", "RowChange", "Sink", "Target"), "declare.targets"),
    "file_folder": "sinks.targets.files",
    "iceberg_table": "declare.inputs.iceberg",
    "kafka_topic": "sinks.targets.kafka",
    "mail": "sinks.targets.mail",
    "opensearch": "sinks.targets.opensearch",
    "postgres": "sinks.targets.postgres",
    "python_source": "declare.inputs.own_sources",
    "redis_keys": "sinks.targets.redis",
    "secret": "declare.secrets",
    **dict.fromkeys(("SourceReader", "SourceRecord"), "declare.inputs.readers"),
    "webhook": "sinks.targets.webhook",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'lakehouse' has no attribute {name!r}")
    home = f"lakehouse.{_ELSEWHERE.get(name, 'declare.table')}"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
