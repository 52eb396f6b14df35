"""The registry of sources: the classes that read each kind of source for an ingest table, and that check it."""

from collections.abc import Callable, Collection
from typing import Any

from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.own_sources import PythonSource
from lakehouse.declare.inputs.sources import FilesSource, RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.session import Session
from lakehouse.stream.reading.checked import Checked, SourceCheck
from lakehouse.stream.reading.contract import Reader
from lakehouse.stream.reading.files import FileCheck, Files
from lakehouse.stream.reading.history import History, HistoryCheck
from lakehouse.stream.reading.own import OwnSource, OwnSourceCheck
from lakehouse.stream.reading.topics import TopicCheck, Topics

_READERS: dict[type, Callable[..., Reader]] = {
    KafkaSource: Topics,
    FilesSource: Files,
    PythonSource: OwnSource,
}
_CHECKS: dict[type, Callable[[Any], SourceCheck]] = {
    Topics: TopicCheck,
    Files: FileCheck,
    OwnSource: OwnSourceCheck,
    History: HistoryCheck,
}


def reader_of(settings: Settings, table: Table, sources: Collection[RecordSource]) -> Reader:
    """Returns the reader of an ingest table's sources."""
    past = [source for source in sources if source.is_history]
    ahead = [source for source in sources if not source.is_history]
    if past:
        return History(Files(settings, table, past), Topics(settings, table, ahead))
    (kind,) = {of for of in type(ahead[0]).__mro__ if of in _READERS}
    return _READERS[kind](settings, table, ahead)


def check_of(settings: Settings, table: Table, sources: Collection[RecordSource]) -> SourceCheck:
    """Returns the check of an ingest table's sources."""
    reader = reader_of(settings, table, sources)
    return _CHECKS[type(reader)](reader)


def check(lakehouse: Lakehouse, table: Table) -> list[Checked]:
    """Compares an ingest table and its quarantine with its sources: they must have each record once that these still have.

    Raises RangeError for other tables, SourceError, AccessError, BrokerError.
    """
    sources = lakehouse.catalog.sources_of(table).values()
    if not sources:
        raise RangeError(
            f"table={table.name}: a {table.kind} table has no topic; name an ingest table, which reads one"
        )
    last = next(lakehouse.commit_log(table).by_stream(), None)
    if last is None:
        raise RangeError(f"table={table.name}: it has read nothing yet; start its job")
    return list(check_of(lakehouse.settings, table, sources).verify(last))


def unreadable(session: Session, table: Table) -> list[str]:
    """Returns why the newest records of an ingest table's sources could not be read as its columns; empty if all is well.

    Raises RegistryAway, SourceAway.
    """
    sources = session.catalog.sources_of(table).values()
    return check_of(session.settings, table, sources).unreadable(session) if sources else []
