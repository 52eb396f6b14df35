"""The states that a table's process function keeps on disk: for each instant a folder of Parquet, and a note that names it.

The note is written last, in one step: a crash left a folder without one. States can be computed
again, so states that cannot be read are left out, with a warning.
"""

import json
import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse.declare.table import Table
from lakehouse.paths import below
from lakehouse.settings import Settings
from lakehouse.storage.disk.files import read_value, remove, remove_tree, replace_file
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.objects import dataset, for_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

_IN_USE = 3_600.0  # seconds for which a run may still read states whose note is gone


@dataclass(frozen=True, slots=True)
class Kept:
    """The states of all keys at an instant, made by the rows and timers before it."""

    at: datetime
    folder: str
    keys: int
    covers: Mapping[str, int]  # input -> the version whose rows before the instant are in them
    code_version: str
    schema: str  # Spark's JSON

    @property
    def note(self) -> str:
        """Returns the name of the note, beside the folder."""
        return f"{self.at:%Y%m%dT%H%M%S.%f}.json"


def kept(settings: Settings, table: Table) -> list[Kept]:
    """Returns the states that are kept of a table, in the order of time."""
    states = []
    folder = table_path(settings, table, "state")
    for note in sorted(folder.glob("*.json")):
        lost = f"{table.name} computes what follows from states that were kept before"
        each = read_value(note, Kept, lost)
        if each and not below(folder, each.folder).is_dir():
            _log.warning(
                f"table={table.name}, folder={below(folder, each.folder)}: it is gone; {lost}"
            )
        elif each:
            states.append(each)
    return sorted(states, key=lambda each: each.at)


def rows(spark: "SparkSession", settings: Settings, table: Table, of: Kept) -> "DataFrame":
    from pyspark.sql.types import StructType

    path = below(table_path(settings, table, "state"), of.folder)
    return spark.read.schema(StructType.fromJson(json.loads(of.schema))).parquet(for_spark(path))


def keep(
    settings: Settings,
    table: Table,
    states: "DataFrame",
    at: datetime,
    covers: Mapping[str, int],
) -> Kept:
    """Writes the states of an instant, which replace those kept of it before. Returns their `Kept`."""
    folder = table_path(settings, table, "state")
    name = f"{at:%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:8]}"
    states.write.parquet(for_spark(folder / name))
    keys = dataset(sorted((folder / name).glob("*.parquet"))).count_rows()
    made = Kept(at, name, keys, dict(covers), table.code_version, states.schema.json())
    replace_file(folder / made.note, asdict(made) | {"at": at.isoformat()})
    return made


def forget(settings: Settings, table: Table, these: Iterable[Kept]) -> None:
    """Removes the notes of these states, and the folders without a note that no run can be reading any more."""
    folder = table_path(settings, table, "state")
    for each in these:
        remove(folder / each.note)
    named = {each.folder for each in kept(settings, table)}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and path.name not in named and _age(path) > _IN_USE:
            remove_tree(path)


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime
