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

if TYPE_CHECKING:  # for editors and type checkers, to which "as" says that a name is public
    from lakehouse.cli.query import read as read
    from lakehouse.declare.decorators import ingest_table as ingest_table
    from lakehouse.declare.decorators import keyed_table as keyed_table
    from lakehouse.declare.decorators import reference_table as reference_table
    from lakehouse.declare.decorators import report_table as report_table
    from lakehouse.declare.decorators import row_table as row_table
    from lakehouse.declare.decorators import versioned_table as versioned_table
    from lakehouse.declare.decorators import window_table as window_table
    from lakehouse.declare.expectations import expect as expect
    from lakehouse.declare.inputs.changes import changes as changes
    from lakehouse.declare.inputs.delta import delta_table as delta_table
    from lakehouse.declare.inputs.files import files as files
    from lakehouse.declare.inputs.folder import folder as folder
    from lakehouse.declare.inputs.iceberg import iceberg_table as iceberg_table
    from lakehouse.declare.inputs.kafka import kafka as kafka
    from lakehouse.declare.inputs.own_sources import python_source as python_source
    from lakehouse.declare.inputs.readers import SourceReader as SourceReader
    from lakehouse.declare.inputs.readers import SourceRecord as SourceRecord
    from lakehouse.declare.lookups import lookup as lookup
    from lakehouse.declare.queries import sql as sql
    from lakehouse.declare.secrets import secret as secret
    from lakehouse.declare.targets import Action as Action
    from lakehouse.declare.targets import Position as Position
    from lakehouse.declare.targets import RowChange as RowChange
    from lakehouse.declare.targets import Sink as Sink
    from lakehouse.declare.targets import Target as Target
    from lakehouse.declare.windows import around as around
    from lakehouse.declare.windows import count as count
    from lakehouse.declare.windows import duplicates as duplicates
    from lakehouse.declare.windows import session as session
    from lakehouse.declare.windows import sliding as sliding
    from lakehouse.declare.windows import tumbling as tumbling
    from lakehouse.sinks.targets.files import file_folder as file_folder
    from lakehouse.sinks.targets.kafka import kafka_topic as kafka_topic
    from lakehouse.sinks.targets.mail import mail as mail
    from lakehouse.sinks.targets.opensearch import opensearch as opensearch
    from lakehouse.sinks.targets.postgres import postgres as postgres
    from lakehouse.sinks.targets.redis import redis_keys as redis_keys
    from lakehouse.sinks.targets.webhook import webhook as webhook
    from lakehouse.transform.functions.patterns import Pattern as Pattern
    from lakehouse.transform.functions.patterns import begin as begin
    from lakehouse.transform.functions.patterns import directly_followed_by as directly_followed_by
    from lakehouse.transform.functions.patterns import followed_by as followed_by
    from lakehouse.transform.functions.patterns import not_followed_by as not_followed_by
    from lakehouse.transform.functions.process import KeyedCoProcess as KeyedCoProcess
    from lakehouse.transform.functions.process import KeyedProcess as KeyedProcess
    from lakehouse.transform.functions.process import OutputTag as OutputTag
    from lakehouse.transform.functions.process import Row as Row
    from lakehouse.transform.functions.process import State as State
    from lakehouse.transform.functions.process import Timers as Timers
    from lakehouse.transform.functions.process import main_output as main_output
    from lakehouse.transform.functions.process import process as process
    from lakehouse.transform.functions.process import side_output as side_output
    from lakehouse.transform.versions import as_of_join as as_of_join

__version__ = "0.1.0"  # the only place: the package's metadata read it here

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
__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lakehouse' has no attribute {name!r}")
    return getattr(import_module(f"lakehouse.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
