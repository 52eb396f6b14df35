"""A Delta table whose log is cut after two versions, and files that become older."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lakehouse.declare.catalog import load
from lakehouse.examples.sensors import tables as sensors
from lakehouse.maintenance import retention
from lakehouse.settings import Settings
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import Lakehouse


class Log:
    """A table of `sensors` that gets a commit, and a checkpoint, at each `append`; of its log two versions are to stay."""

    def __init__(self, root: Path) -> None:
        self.settings = Settings(root=root, tables=(sensors.__name__,), versions=2)
        self.catalog = load(self.settings)
        self.lakehouse = Lakehouse(self.settings, self.catalog)
        self.table = self.catalog.table("valid_readings")
        self.path = table_path(self.settings, self.table)

    def append(self, times: int, partition: str = "2026-01-01-00") -> int:
        for _ in range(times):
            rows = pa.table({"x": [1], "_partition": [partition]})
            write_deltalake(str(self.path), rows, mode="append", partition_by=["_partition"])
            DeltaTable(str(self.path)).create_checkpoint()
        return DeltaTable(str(self.path)).version()

    def maintained(self) -> tuple[int, str]:
        """From where on the log is kept, and whom for."""
        (place,) = retention.places(self.lakehouse, self.table)
        done = retention.maintain(self.settings, place)
        log = self.path / "_delta_log"
        assert (
            min(int(p.stem) for p in log.glob("*.json"))
            == done.oldest
            == min(int(p.name[:20]) for p in log.glob("*.parquet"))
        )
        return done.oldest, done.held_by


DAY = 86_400


def aged(root: Path, days: int) -> None:
    """All that is on disk becomes so much older: by its time, and by what Delta's logs say of it."""
    for path in root.rglob("*"):
        if "_delta_log" in path.parts and path.suffix == ".json":
            text = re.sub(
                r'(deletionTimestamp|modificationTime|timestamp)": ?(\d+)',
                _older(days),
                path.read_text(),
            )
            written = path.stat().st_mtime
            path.write_text(text)
            os.utime(path, (written, written))
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - days * DAY,) * 2)


def _older(days: int) -> Callable[[re.Match], str]:
    return lambda found: f'{found[1]}":{int(found[2]) - days * DAY * 1000}'
