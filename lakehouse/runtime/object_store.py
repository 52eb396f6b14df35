"""A root in an object store, as Spark reads and writes it."""

from pathlib import Path

from lakehouse.object_paths import ObjectPath
from lakehouse.runtime import jars
from lakehouse.settings import Settings, variable

_OURS = "lakehouse.objects.ConditionalFiles$"


def jars_of(settings: Settings) -> tuple[Path, ...]:
    """Returns the jars that Spark needs for the root, downloaded first if they are not there. Raises JarsError."""
    return jars.resolve_s3(settings.jars) if isinstance(settings.root, ObjectPath) else ()


def properties(settings: Settings) -> dict[str, object]:
    """Returns the properties of a Spark session on the root: credentials stay in the variables, where S3A finds them."""
    if not isinstance(settings.root, ObjectPath):
        return {}
    chosen: dict[str, object] = {
        # the first of two writers of a version, or of a micro-batch, wins: S3A's own classes would let both
        "spark.delta.logStore.s3a.impl": f"{_OURS}DeltaLog",
        "spark.sql.streaming.checkpointFileManagerClass": f"{_OURS}Checkpoints",
        # after a lost answer Delta looks whether its commit is there
        "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
        "spark.hadoop.fs.s3a.create.conditional.enabled": "true",
        "spark.hadoop.fs.s3a.fast.upload.buffer": "bytebuffer",
        # the checksums of new clients, which stores of others refuse
        "spark.hadoop.fs.s3a.checksum.generation": "false",
    }
    if endpoint := variable("AWS_ENDPOINT_URL"):
        chosen |= {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": str(endpoint.startswith("https")).lower(),
        }
    if region := variable("AWS_REGION") or variable("AWS_DEFAULT_REGION"):
        chosen["spark.hadoop.fs.s3a.endpoint.region"] = region
    return chosen
