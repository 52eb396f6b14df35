"""The producers of pipelines: `PRODUCER` of the module `producer` beside a module `tables`."""

from importlib import import_module

from lakehouse.declare.modules import extend_path, pipeline_of
from lakehouse.errors import SettingsError
from lakehouse.producers.workload import Producer
from lakehouse.settings import Settings


def producer(settings: Settings, pipeline: str | None) -> Producer:
    """Returns the producer of a pipeline of the settings; raises SettingsError if it has none."""
    extend_path(settings)
    for tables in settings.tables:
        if pipeline_of(tables) == pipeline and (made := producer_beside(tables)):
            return made
    having = [pipeline_of(tables) for tables in settings.tables if producer_beside(tables)]
    raise SettingsError(
        f"pipeline={pipeline!r}: LAKEHOUSE_TABLES has producers for {', '.join(having) or 'no pipeline'}; name one of them, or "
        "give --topic and --file"
    )


def producer_beside(tables: str) -> Producer | None:
    """Returns the producer beside a module of tables, that of `shop.producer` for `shop.tables`; None if there is none."""
    package, _, name = tables.rpartition(".")
    if not package or name != "tables":
        return None
    module = f"{package}.producer"
    try:
        # by name: a job that imports the tables of a pipeline needs no producer
        return getattr(import_module(module), "PRODUCER", None)
    except ModuleNotFoundError as err:
        if not f"{module}.".startswith(f"{err.name}."):  # it is there, and imports what is not
            raise
        return None
