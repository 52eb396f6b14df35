"""Names of jobs: a pipeline's streaming job has its name, a target's follower a prefix and the target's name."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakehouse.declare.catalog import Catalog

_FOLLOWER = "publish:"  # no module has such a name


def follower_of(target: str) -> str:
    """Returns the job that publishes to a target."""
    return _FOLLOWER + target


def target_of(job: str) -> str:
    """Returns the target of a follower; empty for a streaming job."""
    return job.removeprefix(_FOLLOWER) if job.startswith(_FOLLOWER) else ""


def with_followers(catalog: "Catalog", pipelines: Iterable[str]) -> list[str]:
    """Returns the jobs of these pipelines, each before the followers of its tables."""
    return [
        job
        for pipeline in pipelines
        for job in (pipeline, *map(follower_of, catalog.targets([pipeline])))
    ]


def module_of(job: str) -> str:
    """Returns the module that runs the job, with `python -m`."""
    return "streaming_jobs.exporters.follower" if target_of(job) else "streaming_jobs.driver"


def command(verb: str, job: str) -> str:
    """Returns the command about the job that a user types."""
    target = target_of(job)
    return f"lakehouse publish {verb} {target}" if target else f"lakehouse stream {verb} {job}"
