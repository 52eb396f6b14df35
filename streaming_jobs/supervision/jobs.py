"""Names of jobs: a pipeline's streaming job has its name, a target's follower that of the target behind a prefix.

Both are started, ended and supervised alike.
"""

from collections.abc import Iterable

from lakehouse.declare.catalog import Catalog

_FOLLOWER = "publish:"  # no module has such a name


def follower_of(target: str) -> str:
    """The job that publishes to a target."""
    return _FOLLOWER + target


def target_of(job: str) -> str:
    """The target of a follower; empty of a streaming job."""
    return job.removeprefix(_FOLLOWER) if job.startswith(_FOLLOWER) else ""


def with_followers(catalog: Catalog, pipelines: Iterable[str]) -> list[str]:
    """The jobs of these pipelines: each with the followers of its tables behind it."""
    return [
        job
        for pipeline in pipelines
        for job in (pipeline, *map(follower_of, catalog.targets([pipeline])))
    ]


def module_of(job: str) -> str:
    """What runs the job, with `python -m`."""
    return "streaming_jobs.exporters.follower" if target_of(job) else "streaming_jobs.driver"


def command(verb: str, job: str) -> str:
    """What a user types about the job."""
    target = target_of(job)
    return f"lakehouse publish {verb} {target}" if target else f"lakehouse stream {verb} {job}"
