"""A pipeline runs on more or fewer resources: its job is started again, and the state that Spark keeps is divided again."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import load
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import supervisor

if TYPE_CHECKING:
    from lakehouse.stream.rescaling import Rescaled


def rescale(
    settings: Settings,
    pipeline: str,
    *,
    wait: float | None = None,
    by: str = "",
    says: Callable[[str], None] = lambda what: None,
) -> "tuple[JobStatus, list[Rescaled]]":
    """Ends the pipeline's job, divides the state of its tables as the settings say, and starts it with these.

    Spark starts before the job ends. If this is killed in between, any start goes on with the tables as they are, and the
    same call does the rest.

    :param wait: seconds within which the job must run, by default those of `start_within`.
    :param says: is called with what is being done.
    :raises JobError: as `supervisor.restart`.
    :raises CommitError: if a table cannot go on as it is; the job is started as it was.
    """
    from lakehouse.runtime import spark_session
    from lakehouse.storage.session import Session
    from lakehouse.stream import rescaling

    lakehouse = load(settings.for_pipeline(pipeline))
    tables = lakehouse.catalog.of_pipeline(pipeline)
    with ExitStack() as opened:
        session: list[Session] = []
        rescaled: list[Rescaled] = []

        def start() -> None:
            if list(rescaling.due(lakehouse, tables)):
                says("starting Spark")
                spark = spark_session.opened(lakehouse.settings, f"rescale {pipeline}")
                session.append(Session.on(lakehouse, opened.enter_context(spark)))
            says(f"stopping {pipeline}")

        def divide() -> None:
            for spark in session:
                for table, before, now in rescaling.due(lakehouse, tables):
                    says(f"dividing the state of {table.name} into {now} partitions")
                    rescaled.extend(filter(None, [rescaling.rescale(spark, table, before, now)]))
            says(f"starting {pipeline}")

        status = supervisor.restart(
            settings, pipeline, wait=wait, by=by, ahead=start, meanwhile=divide
        )
    return status, rescaled
