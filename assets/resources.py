"""The lakehouse as a resource: settings at the border, one Spark session a run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import dagster as dg
from pydantic import Field, PrivateAttr

from lakehouse import catalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, from_environment

if TYPE_CHECKING:
    from lakehouse.lake import Lake

# pools: with a limit of one run each (dagster.yaml) a backfill holds up neither a proof nor the start of a stream
BOUNDED = "bounded"
PROOF = "proof"


class Lakehouse(dg.ConfigurableResource):
    """Where the lakehouse is, and how much of the machine a bounded run may take.

    Everything else, the properties of Kafka clients and of Spark above all, for they may hold secrets, each process
    reads from its own environment: Dagster never stores it.
    """

    root: str = Field(description="the folder of tables, checkpoints, ledger and job status")
    tables: list[str] = Field(description="the modules of declarations")
    jars: str = Field(description="the folder of resolved jars")
    master: str = Field(default="local[1]", description="Spark's master for bounded runs; few cores, for streams go on")
    _lake: "Lake | None" = PrivateAttr(default=None)
    _held: ExitStack = PrivateAttr(default_factory=ExitStack)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(root=str(settings.root), tables=list(settings.tables), jars=str(settings.jars))

    @property
    def settings(self) -> Settings:
        here = from_environment()
        return replace(here, root=Path(self.root), tables=tuple(self.tables), jars=Path(self.jars))

    @property
    def lake(self) -> "Lake":
        """The lakehouse with a Spark session: one for all steps of a run, started when the first of them asks."""
        if self._lake is None:
            from lakehouse import session
            from lakehouse.lake import Lake

            spark = self._held.enter_context(session.opened(replace(self.settings, spark_master=self.master), BOUNDED))
            self._lake = Lake(spark, self.settings, catalog.load(self.settings))
        return self._lake

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        self._held.close()
        self._lake = None


@contextmanager
def refusals() -> Iterator[None]:
    """Shows what the library refuses as the step's failure, in its own words; to try again would not help."""
    try:
        yield
    except LakehouseError as err:
        raise dg.Failure(description=str(err), allow_retries=False) from err
