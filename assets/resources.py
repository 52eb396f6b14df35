"""The lakehouse as a resource: settings from outside, one Spark session a run."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pydantic import Field, PrivateAttr

from lakehouse.declare import catalog
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.object_paths import to_path
from lakehouse.settings import Settings, from_environment, overridden, values_of
from lakehouse.storage.lakehouse import Lakehouse

if TYPE_CHECKING:
    from lakehouse.storage.session import Session

# pools: with a limit of one run each (dagster.yaml) a backfill holds up neither a reconciliation
# nor the start of a stream
BATCH = "batch"
RECONCILIATION = "reconciliation"
# schedules and sensors that are on until somebody switches them off
_ON = dg.DefaultScheduleStatus.RUNNING
schedule = partial(dg.schedule, execution_timezone="UTC", default_status=_ON)
sensor = partial(dg.sensor, default_status=dg.DefaultSensorStatus.RUNNING)


def run_key(context: dg.ScheduleEvaluationContext) -> str:
    """Returns the key that keeps a schedule's tick to one run."""
    return f"{context.scheduled_execution_time:%Y-%m-%d-%H-%M}"


def job_of(name: str, *ops: dg.OpDefinition) -> dg.JobDefinition:
    """Returns the job of these ops, which do not wait for each other; the first one's text describes it."""

    @dg.job(name=name, description=ops[0].description)
    def job() -> None:
        for op in ops:
            op()

    return job


class LakehouseResource(dg.ConfigurableResource):
    """The root of the lakehouse, and the share of the machine that a batch run may take.

    Each process reads everything else, except what is in `own`, from its own environment. That holds
    above all for the properties of Kafka clients and of Spark: they may hold secrets, which Dagster
    never stores.
    """

    root: str = Field(description="the folder of tables, checkpoints, log tables and job status")
    tables: list[str] = Field(description="the modules of declarations")
    jars: str = Field(description="the folder of resolved jars")
    master: str = Field(
        default="",
        description="Spark's master for batch runs; empty: where the streaming jobs of the table's pipeline run, or one core "
        "if that is this machine, because the streams go on",
    )
    own: dict[str, Any] = Field(
        default={}, description="settings by their names, in place of those of the environment"
    )
    _session: "Session | None" = PrivateAttr(default=None)
    _catalog: "catalog.Catalog | None" = PrivateAttr(default=None)
    _at: str = PrivateAttr(default="")  # the master of the session that runs
    _held: ExitStack = PrivateAttr(default_factory=ExitStack)

    @classmethod
    def of(cls, settings: Settings, own: Collection[str] = ()) -> Self:
        values = values_of(settings)
        return cls(
            root=str(settings.root),
            tables=list(settings.tables),
            jars=str(settings.jars),
            master=settings.batch_master,
            own={name: values[name] for name in own},
        )

    @property
    def settings(self) -> Settings:
        base = overridden(from_environment(required=False), self.own)
        return replace(base, root=to_path(self.root), tables=tuple(self.tables), jars=Path(self.jars))

    @property
    def catalog(self) -> catalog.Catalog:
        """Returns the tables, without starting a Spark session."""
        if self._catalog is None:
            self._catalog = catalog.load(self.settings)
        return self._catalog

    @property
    def declared(self) -> Lakehouse:
        """Returns the lakehouse for functions that need no Spark."""
        return Lakehouse(self.settings, self.catalog)

    def master_of(self, pipeline: str) -> str:
        """Returns the Spark master of batch runs of a pipeline's tables; "" is a pipeline without resources of its own."""
        theirs = self.settings.for_pipeline(pipeline).spark_master
        return self.master or ("local[1]" if theirs.startswith("local") else theirs)

    @property
    def session(self) -> "Session":
        """Returns the lakehouse with the Spark session that runs, or with a new one at `LAKEHOUSE_SPARK_MASTER`."""
        return self._session or self._opened(self.master_of(""))

    def session_of(self, table: Table) -> "Session":
        """Returns the lakehouse with a Spark session at the master of that table's batch runs.

        All steps of a run share one session, which starts at the first call. A table whose batch runs
        go to another master gets another session.
        """
        master = self.master_of(table.pipeline)
        if self._session is not None and self._at == master:
            return self._session
        return self._opened(master)

    def _opened(self, master: str) -> "Session":
        from lakehouse.runtime import spark_session
        from lakehouse.storage.session import Session

        self._close()
        settings = replace(self.settings, spark_master=master)
        spark = self._held.enter_context(spark_session.opened(settings, BATCH))
        self._session, self._at = Session.on(self.declared, spark), master
        return self._session

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        self._close()

    def _close(self) -> None:
        self._held.close()
        self._session = None


@contextmanager
def refusals() -> Iterator[None]:
    """Turns an error of the library into the step's failure, without retries: another attempt would not help."""
    try:
        yield
    except LakehouseError as err:
        raise dg.Failure(description=str(err), allow_retries=False) from err
