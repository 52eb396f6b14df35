"""Names of the columns that the library adds to those of a user, and the names that a user gives in Spark DDL.

Some are stored with each row. Others are added while it computes, and taken away again: no column
of a user has such a name. What a table's function returns has no name with a leading `_` (`plan`
refuses it); what it reads, and makes on the way, may.
"""

import re
from collections.abc import Iterable

ARRIVAL = "_arrival"
ARRIVAL_TYPE = "struct<watermark:timestamp,topic:string,partition:int,offset:bigint,time:timestamp>"
PARTITION = "_partition"
ORIGIN = "_origin"
WINDOW = "window"
# of a row that is a window's result, where another table reads it: the last instant of that window
WINDOW_TIME = "window_time"
# an ingest table whose event time this is gets it as a column: the time of arrival
INGESTION = "ingestion_time"
SOURCE_ORDER = ("time", "topic", "partition", "offset")
PLACE = (
    "place"  # that of a row in its message, in `_arrival` of tables whose messages may have several
)
REACH = "lakehouse.reach"  # metadata of `_arrival` behind a process function: microseconds that its state may outlive a row
RECORD = "_record"  # what a row was parsed from: struct<topic, key, value, partition, offset, timestamp, problem>
# of a recorded answer: 16 bytes that stand for the row of the input that it belongs to
ROW = "_row"
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
    """A reason without the value that was sent and its place, so that rows can be counted by it."""
    return _SENT.sub("", reason)


def helper(name: str) -> str:
    """The column that holds `name`, beside columns of the user's."""
    return f"{_PREFIX}{name}"


def quoted(name: str) -> str:
    """The name as Spark reads it whatever it holds: a dot would name a field of a struct."""
    return "`" + name.replace("`", "``") + "`"


def quoted_column(name: str, columns: Iterable[str]) -> str:
    """The name quoted if it is of one of the columns; else as it is, for it may say a field of a struct."""
    return quoted(name) if name in columns else name


def reserved(names: Iterable[str]) -> list[str]:
    """Those of the names that a helper column might have.

    Spark does not distinguish upper from lower case in names.
    """
    return [name for name in names if name.lower().startswith(_PREFIX)]


def column_names(schema: str) -> list[str]:
    """The names of the columns of Spark DDL, without Spark."""
    return [name for name, _ in of_ddl(schema)]


def of_ddl(schema: str) -> list[tuple[str, str]]:
    """The columns of Spark DDL, each with what is said of it; without comments."""
    depth, parts = 0, [""]
    for letter in _QUOTED.sub("", schema):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    parts_of = (re.split(r"[\s:]", part.strip(), maxsplit=1) for part in parts)
    return [(name.strip("`"), "".join(said)) for name, *said in parts_of]


def is_table_name(name: str) -> bool:
    """Whether a table can be called so."""
    return "__" not in name and not name.startswith("_") and name.isidentifier()
