"""Names of the columns that the library adds, and those that a user declares in Spark DDL.

Some are stored with each row. Others exist only while the library computes, and no user's column has such
a name. A table's function may read and make columns with a leading `_`, but not return them (`plan` refuses it).
"""

import re
from collections.abc import Iterable

ARRIVAL = "_arrival"
ARRIVAL_TYPE = "struct<watermark:timestamp,topic:string,partition:int,offset:bigint,time:timestamp>"
PARTITION = "_partition"
ORIGIN = "_origin"
WINDOW = "window"
# the last instant of a window, as the event time of its result where another table reads that
WINDOW_TIME = "window_time"
# the time of arrival: a column of ingest tables that name it as their event time
INGESTION = "ingestion_time"
SOURCE_ORDER = ("time", "topic", "partition", "offset")
PLACE = "place"  # a row's place in its message, in `_arrival` where messages may hold several
REACH = "lakehouse.reach"  # metadata of `_arrival` after a process function: microseconds that its state may outlive a row
RECORD = "_record"  # what a row was parsed from: struct<topic, key, value, partition, offset, timestamp, problem>
ROW = "_row"  # of a recorded answer: 16 bytes that stand for the input row that it belongs to
REASON = "_reason"  # of a judged row: why it is quarantined; null for a good one
HEADERS = "headers"  # of a message, in the quarantine of tables that read some
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
QUARANTINE = (
    f"reason STRING, value BINARY, key BINARY, {ARRIVAL} {{}}, {ORIGIN} STRING, {PARTITION} STRING"
)
_SENT = re.compile(r", (got|at character) .*", re.DOTALL)
_PREFIX = "__lakehouse_"
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")  # a comment


def kind_of_reason(reason: str) -> str:
    """Returns a reason without the value that was sent and its place, so that rows can be counted by it."""
    return _SENT.sub("", reason)


def helper(name: str) -> str:
    """Returns the helper column for `name`, which no column of the user collides with."""
    return f"{_PREFIX}{name}"


def quoted(name: str) -> str:
    """Returns the name in backquotes: Spark would read a dot as a field of a struct."""
    return "`" + name.replace("`", "``") + "`"


def quoted_column(name: str, columns: Iterable[str]) -> str:
    """Returns the name quoted if a column has it; else unchanged, for it may be a field of a struct."""
    return quoted(name) if name in columns else name


def reserved(names: Iterable[str]) -> list[str]:
    """Returns the names that a helper column might have. Spark ignores case in names."""
    return [name for name in names if name.lower().startswith(_PREFIX)]


def without_not_null(schema: str) -> str:
    """Returns Spark DDL in single blanks, without NOT NULL, which is an expectation and decides no value."""
    return re.sub(r"\s+NOT\s+NULL\b", "", " ".join(schema.split()), flags=re.IGNORECASE)


def column_names(schema: str) -> list[str]:
    """Returns the names of the columns of Spark DDL, without Spark."""
    return [name for name, _ in of_ddl(schema)]


def of_ddl(schema: str) -> list[tuple[str, str]]:
    """Returns the columns of Spark DDL, each with its type and constraints, without comments."""
    depth = 0
    parts = [""]
    for letter in _QUOTED.sub("", schema):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    parts_of = (re.split(r"[\s:]", part.strip(), maxsplit=1) for part in parts)
    return [(name.strip("`"), "".join(rest)) for name, *rest in parts_of]


def is_table_name(name: str) -> bool:
    """Returns True if a table may have this name."""
    return "__" not in name and not name.startswith("_") and name.isidentifier()
