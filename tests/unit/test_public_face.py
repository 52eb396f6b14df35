"""What a module of tables imports: `from lakehouse import ...`."""

import pytest

import lakehouse

FACE = {  # a name that goes, or is renamed, breaks users' modules
    "KeyedCoProcess", "KeyedProcess", "OutputTag", "Pattern", "Row", "State", "Timers", "as_of_join", "count",
    "directly_followed_by",
    "duplicates", "expect", "files",
    "around", "begin", "changes", "kafka", "lookup", "main_output", "not_followed_by", "process", "secret", "session",
    "side_output",
    "sliding", "sql", "followed_by", "ingest_table", "row_table", "window_table", "keyed_table", "versioned_table",
    "reference_table", "report_table",
    "tumbling", "folder", "delta_table", "iceberg_table", "file_folder", "kafka_topic", "postgres", "redis_keys", "opensearch",
    "webhook", "mail",
    "Action", "Position", "RowChange", "Sink", "Target", "python_source", "SourceReader", "SourceRecord", "read",
}  # fmt: skip


def test_every_name_is_there():
    assert set(lakehouse.__all__) == FACE | {"__version__"} == set(dir(lakehouse))
    assert all(getattr(lakehouse, name) is not None for name in lakehouse.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lakehouse' has no attribute 'tabel'"):
        _ = lakehouse.tabel
    with pytest.raises(ImportError, match="cannot import name 'tabel'"):
        exec("from lakehouse import tabel")
