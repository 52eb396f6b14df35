"""A pipeline runs on more or fewer resources: its job is started again, and the state that Spark keeps is divided again."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import load
from streaming_jobs import supervisor
from streaming_jobs.progress import JobStatus

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

    Killed in between it leaves tables that any start goes on with; the same call does the rest.

    :param wait: seconds within which the job must run, by default those of `start_within`.
    :param says: is called with what is being done.
    :raises JobError: as `supervisor.restart`.
    :raises CommitError: if an input does not go back as far as a state; the job is started as it was.
    """
    from lakehouse.runtime import spark_session
    from lakehouse.storage.session import Session
    from lakehouse.stream import rescaling

    lakehouse, rescaled = load(settings.for_pipeline(pipeline)), list[rescaling.Rescaled]()

    def divide() -> None:
        due = list(rescaling.due(lakehouse, lakehouse.catalog.of_pipeline(pipeline)))
        if not due:
            return
        says("starting Spark")
        with spark_session.opened(lakehouse.settings, f"rescale {pipeline}") as spark:
            session = Session.on(lakehouse, spark)
            for table, before, now in due:
                says(f"dividing the state of {table.name} into {now} partitions")
                rescaled.append(rescaling.rescale(session, table, before, now))
        says(f"starting {pipeline}")

    return supervisor.restart(settings, pipeline, wait=wait, by=by, meanwhile=divide), rescaled
