"""The checkpoint of a query of Spark's, file by file: the offsets of its micro-batches, those that are done, its state.

A generation of a query is a folder `_checkpoints/<query>/<n>`. In it Spark keeps `offsets/<batch>`
(a version, settings, and the offsets up to which each source is read), written before a micro-batch,
and `commits/<batch>`, written after it. `checkpoint_content` checks that Spark can read them.
"""

import json
import uuid
from collections import ChainMap
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import remove_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHOLE, _CHANGES = ("zip", "snapshot"), ("changelog", "delta")  # for both of Spark's state stores
STATE_SCHEMA = Path("_metadata", "schema")


def generations(settings: Settings, table: Table) -> list[int]:
    return numbers(layout.query_checkpoints(settings, table.name))


def folder_of(settings: Settings, table: Table, generation: int) -> Path:
    return layout.query_checkpoints(settings, table.name) / str(generation)


def newest(settings: Settings, table: Table) -> Path | None:
    """Returns the folder of the last generation of the table's query; None if there is none."""
    numbers = generations(settings, table)
    return folder_of(settings, table, numbers[-1]) if numbers else None


def of_all(settings: Settings) -> list[Path]:
    """Returns the last generation of each query, but not of early results, which start again with each process."""
    folder = layout.checkpoints(settings)
    queries = folder.iterdir() if folder.is_dir() else ()
    by_query = ((query, numbers(query)) for query in queries if not query.name.endswith("__early"))
    return [query / str(numbers[-1]) for query, numbers in by_query if numbers]


def started(settings: Settings, table: Table) -> bool:
    """Returns True if any generation of the table's query has begun a micro-batch."""
    return any(layout.query_checkpoints(settings, table.name).glob("*/offsets"))


def remove(settings: Settings, query: str) -> None:
    """Removes all files that a query has left, if any."""
    folder = layout.query_checkpoints(settings, query)
    if folder.is_dir():
        remove_tree(folder)


def begun(checkpoint: Path) -> list[int]:
    """Returns the micro-batches that have begun, in order."""
    return numbers(checkpoint / "offsets")


def done(checkpoint: Path) -> list[int]:
    """Returns the micro-batches that Spark has recorded as done, in order."""
    return numbers(checkpoint / "commits")


def take_back(checkpoint: Path, batch: int) -> None:
    """Makes Spark run the last micro-batch that is done once more."""
    folder = checkpoint / "commits"
    for file in (folder / str(batch), folder / f".{batch}.crc"):
        file.unlink(missing_ok=True)


def noted(checkpoint: Path, batch: int) -> dict[str, Any]:
    """Returns Spark's settings and clock as the micro-batch began. Raises ValueError or IndexError if the file is torn."""
    return json.loads(_lines(checkpoint, batch)[1])


def sources(checkpoint: Path, batch: int) -> list[str]:
    """Returns the offsets up to which the micro-batch reads each source, as JSON."""
    return _lines(checkpoint, batch)[2:]


def ended(checkpoint: Path, batch: int) -> dict | None:
    """Returns the offsets up to which the micro-batch reads, of all sources in one; None if the file is torn."""
    try:
        return dict(ChainMap(*map(json.loads, sources(checkpoint, batch)))) or None
    except ValueError:
        return None


def keeps_state(checkpoint: Path) -> bool:
    return (checkpoint / "state").is_dir()


def state_gone(checkpoint: Path, batch: int) -> str:
    """Returns why the state after that micro-batch cannot be read.

    Returns "" if each of its partitions has all files of that version.
    """
    partitions = state_partitions_of(checkpoint)
    for partition in partitions:
        if state_files(partition, batch + 1) is None:
            return f"its state of micro-batch {batch} is gone in partition {partition.name}"
    if not partitions:
        return "its state is gone"
    # Spark writes and compares the schema in the first partition alone
    return "" if (partitions[0] / STATE_SCHEMA).is_file() else "the schema of its state is gone"


def state_partitions_of(checkpoint: Path) -> list[Path]:
    """Returns the folders with the state of each partition."""
    operator = checkpoint / "state" / "0"
    return [operator / str(partition) for partition in numbers(operator)]


def state_files(partition: Path, version: int) -> list[Path] | None:
    """Returns the files that make a version of a partition's state: one whole earlier version, and each change since.

    Returns None if one of them is gone.
    """
    by_version: dict[int, dict[str, Path]] = {}
    for path in partition.iterdir():
        number, _, ending = path.name.partition(".")
        if number.split("_")[0].isdigit():
            by_version.setdefault(int(number.split("_")[0]), {})[ending] = path
    files: list[Path] = []
    for at in range(version, 0, -1):
        endings = by_version.get(at, {})
        if whole := next((endings[name] for name in WHOLE if name in endings), None):
            return [whole, *files]
        change = next((endings[name] for name in _CHANGES if name in endings), None)
        if change is None:
            return None
        files.insert(0, change)
    return files


def write(spark: "SparkSession", checkpoint: Path, offset: Mapping) -> None:
    """Makes the checkpoint of a query of one source, as Spark does; its first micro-batch reads up to the offset."""
    jvm: Any = spark._jvm
    metadata = jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
    now = int(datetime.now(UTC).timestamp() * 1000)
    offset_metadata = json.loads(metadata.apply(0, now, spark._jsparkSession.conf()).json())
    # a setting without an explicit value is null here; Spark writes the value in force instead
    offset_metadata["conf"] = {
        name: spark.conf.get(name) if value is None else value
        for name, value in offset_metadata["conf"].items()
    }
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir()
    (checkpoint / "offsets" / "0").write_text(
        f"v1\n{json.dumps(offset_metadata)}\n{json.dumps(offset)}"
    )


def offsets_file(checkpoint: Path, batch: int) -> Path:
    return checkpoint / "offsets" / str(batch)


def _lines(checkpoint: Path, batch: int) -> list[str]:
    return offsets_file(checkpoint, batch).read_text().splitlines()


def numbers(folder: Path) -> list[int]:
    """Returns the numbers of the numbered files or folders in it, in order."""
    return (
        sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []
    )
