"""The one concept: a table, declared once, run as a stream and in batch."""

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from lakehouse.declare import code_version, kinds
from lakehouse.declare.expectations import Expectation
from lakehouse.declare.kinds import Kind
from lakehouse.declare.lookups import Lookup
from lakehouse.declare.reports import Report
from lakehouse.declare.targets import Target
from lakehouse.declare.windows import Duplicates, Interval, Window
from lakehouse.errors import DeclarationError
from lakehouse.ranges import PartitionBy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Layer = Literal["bronze", "silver", "gold"]
LatePolicy = Literal["drop", "side_output", "update"]


@dataclass(frozen=True, slots=True)
class Table:
    """One declared Delta table; made by a decorator, completed by the catalog.

    Call it to run its function.
    """

    name: str
    layer: Layer
    transformation: Callable[..., "DataFrame"] = field(repr=False)
    inputs: tuple[str, ...]
    kind: Kind
    event_time: str = ""
    delay: timedelta = timedelta(0)
    window: Window | None = None
    keys: tuple[str, ...] = ()
    late: LatePolicy = "side_output"
    expectations: tuple[Expectation, ...] = ()
    partition_by: PartitionBy = "hour"
    owner: str = ""
    tolerance: float = 0.0
    pipeline: str = ""  # completed by the catalog
    early_results: timedelta = timedelta(0)
    deduplicate: Duplicates | None = None
    deterministic: bool = True
    metrics: tuple[str, ...] = ()
    stale_after: timedelta = timedelta(0)  # zero: the settings' bound
    sql: str = ""  # the query, if the transformation was declared as one
    context: Interval | None = None
    publish: tuple[Target, ...] = ()
    ttl: timedelta = timedelta(0)  # of a lasting state, or of a keyed table's rows; zero: none
    final_rows: bool = False
    lookup: Lookup | None = None
    refresh: timedelta = timedelta(0)  # zero: a reference table stands still while its job runs
    report: Report | None = None
    marker: str = ""
    watermark_by: str = ""
    as_of: bool = False  # completed by the catalog: True if it reads a versioned table
    # completed by the catalog: the inputs with which a report closes
    closes_with: tuple["Table", ...] = field(default=(), repr=False, compare=False)

    def __call__(self, *inputs: "DataFrame", **named: "DataFrame") -> "DataFrame":
        with _called(self):
            return self.transformation(*inputs, **named)

    @property
    def description(self) -> str:
        return inspect.getdoc(self.transformation) or ""

    @property
    def code(self) -> str:
        """The source: the query, or the function with its decorator."""
        return self.sql or inspect.getsource(self.transformation)

    @property
    def has_late_rows(self) -> bool:
        """True if rows may come too late: of keyed tables only those with `ttl` or `final_rows` have late rows."""
        return self.kind.has_late_rows or (self.kind.is_upserted and self.counts_by_time)

    @property
    def state_ttl(self) -> timedelta:  # of its process function
        return timedelta(0) if self.kind.is_upserted else self.ttl

    @property
    def counts_by_time(self) -> bool:
        """True if the frontier decides which rows count for a keyed table."""
        return self.final_rows or bool(self.ttl)

    @property
    def by_neighbours(self) -> bool:
        """True if a row is computed with other rows. Then it is late by its own event time."""
        windowed = self.window is not None and self.window.kind in ("session", "count")
        return windowed or self.as_of or self.context is not None or bool(self.ttl)

    @property
    def after(self) -> timedelta:
        """The distance by which its frontier stays behind the watermark."""
        return self.context.after if self.context else timedelta(0)

    @property
    def code_version(self) -> str:
        """A digest of the code (without comments and docstrings) and of every option that decides rows.

        The code is the query, or the function with the functions and constants of its module that it uses.
        """
        if self.sql:
            parts = [" ".join(self.sql.split())]
        else:
            parts = code_version.code_of(self.transformation).parts
        if self.report and self.report.draw:
            parts += [self.report.suffix, *code_version.code_of(self.report.draw).parts]
        decided: tuple[object, ...] = (
            self.event_time,
            self.delay,
            self.window,
            self.keys,
            self.late,
            self.partition_by,
            self.expectations,
        )
        looked_up = self.lookup.meaning if self.lookup else ()
        by = f"watermark_by {self.watermark_by}" if self.watermark_by else ""
        final = "final_rows" if self.final_rows else ""
        # the words of what a table keeps are part of every version that stands on disk
        keeps = {kinds.KEYED: "latest", kinds.VERSIONED: "versions"}.get(self.kind, "")
        more = (self.deduplicate, self.context, keeps, self.ttl, self.marker, looked_up, by)
        decided += tuple(setting for setting in (*more, final) if setting)
        return hashlib.sha256(repr((parts, decided)).encode()).hexdigest()[:16]


@dataclass
class Call:
    """One call of a table's function, and how many process functions it has applied."""

    table: Table
    processes: int = 0


_CALL: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def _called(table: Table) -> Iterator[None]:
    """Marks the block in which the table's function is called.

    Raises DeclarationError if the table has a lasting state and the function does not keep exactly one.
    """
    call = Call(table)
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)
    if table.state_ttl and call.processes != 1:
        raise DeclarationError(
            f"table={table.name}, ttl={table.ttl}: its function applies {call.processes} process functions, and only one may "
            "have a lasting state; call process(...) once, and declare a table for each other"
        )


def current_call() -> Call | None:
    """Returns the call of a table's function that is under way; None outside one."""
    return _CALL.get()
