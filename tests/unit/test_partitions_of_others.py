"""Values of the partitions of a Delta table of others have the types of its columns."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakehouse.storage.delta.arrow import plain
from lakehouse.storage.foreign import foreign_log
from lakehouse.storage.foreign.foreign_files import Rows

INSTANT = datetime(2026, 1, 1, 12, 30, 0, 250_000, UTC)
VALUES = [
    (INSTANT, pa.timestamp("us", "UTC")),
    (INSTANT.replace(tzinfo=None), pa.timestamp("us")),
    (date(2026, 1, 1), pa.date32()),
    (Decimal("1.50"), pa.decimal128(12, 2)),
    (True, pa.bool_()),
    (1 << 40, pa.int64()),
    (7, pa.int16()),
    (1.5, pa.float64()),
    ("a/b c", pa.string()),
]


@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda each: str(each))
def test_a_partition_has_the_value_and_the_type_of_its_column(tmp_path: Path, value, kind) -> None:
    there = tmp_path / "theirs"
    columns = {"n": pa.array([1, 2]), "of": pa.array([value, None], kind)}
    write_deltalake(there, pa.table(columns), partition_by=["of"])
    types = foreign_log.partition_types(there)
    assert types.field("of").type == kind
    read = {}
    for file in foreign_log.log_state.at(there, 0).files.values():
        known = foreign_log._registered(there, file)
        opened = Rows(foreign_log.location(there, known.path), there, known, types)
        _, rows = opened.take(10, 1 << 20)
        assert rows is not None and plain(rows).schema.field("of").type == kind
        read |= dict(zip(rows["n"].to_pylist(), rows["of"].to_pylist(), strict=True))
    assert read == {1: value, 2: None}
