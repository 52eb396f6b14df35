"""The lakehouse of the environment, and Spark on it, as commands open them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from lakehouse.cli import console
from lakehouse.settings import from_environment

if TYPE_CHECKING:
    from lakehouse.declare.table import Table
    from lakehouse.storage.lakehouse import Lakehouse
    from lakehouse.storage.session import Session


def lakehouse() -> "Lakehouse":
    from lakehouse.storage.lakehouse import load

    return load(from_environment())


def tables(lakehouse: "Lakehouse", pipelines: Sequence[str] | None) -> "list[Table]":
    """Returns the tables of these pipelines, by default of all. Raises UnknownTable."""
    named = pipelines or lakehouse.catalog.pipelines()
    return [table for name in named for table in lakehouse.catalog.of_pipeline(name)]


@contextmanager
def session(lakehouse: "Lakehouse", name: str, *, lasting: bool = False) -> Iterator["Session"]:
    """Opens a session named `name`, for one piece of work or for work without end; the terminal shows that it starts."""
    from lakehouse.runtime import spark_session
    from lakehouse.storage.session import Session

    start = spark_session.lasting if lasting else spark_session.opened
    with ExitStack() as opened:
        with console.working("starting Spark"):
            spark = opened.enter_context(start(lakehouse.settings, name))
        yield Session.on(lakehouse, spark)
