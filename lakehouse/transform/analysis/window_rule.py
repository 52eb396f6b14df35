"""The rule that no window's rows depend on other windows computed with it, checked by the origins of columns.

Each row of a window table is made of rows of one window alone, and its column `window` is theirs. The function
computes several windows at once as it computes each of them, so the stream, which has them one by one, and batch agree.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame

from lakehouse.declare.columns import WINDOW
from lakehouse.transform.analysis.equal_columns import End
from lakehouse.transform.analysis.origins import Rows, Walk
from lakehouse.transform.analysis.plan_tree import analyzed, ids
from lakehouse.transform.analysis.shapes import ROW_BY_ROW

_ALL = "it is over all windows that are computed at once"
_SAME_PLACE = "give both sides the window at the same place"
_RANKED = "rank the rows of each, partitioned by window"
_REMEDIES = {
    "Aggregate": "add window to its GROUP BY",
    "Deduplicate": "add window to its columns",
    "Distinct": "add window to its columns",
    "Union": "give each part the window at the same place",
    **dict.fromkeys(("Except", "ExceptAll", "Intersect", "IntersectAll"), _SAME_PLACE),
    **dict.fromkeys(("GlobalLimit", "Offset", "Tail", "Sample"), _RANKED),
}
_OWN_TABLE = "do it in a row table before, or in a table that reads this one"


def across_windows(rows: DataFrame, *, one_end: bool) -> Iterator[tuple[str, str]]:
    """Yields operators that combine rows of several windows, with the remedy. With `one_end`, a start identifies a window."""
    result = Walk(one_end=one_end, named=WINDOW).rows(analyzed(rows))
    if not result.uses:
        yield (
            "operators=none",
            "no row of its result is made of rows of a window; read the input of the windows",
        )
        return
    shown = dict(zip(rows.columns, ids(result.plan), strict=True))
    origins = result.origins(shown[WINDOW]) if WINDOW in shown else {}
    if lost := _losing(result):
        yield from map(_refusal, lost)
    elif not result.from_input:
        yield _without_rows(result)
    elif any(origins.get(number) != WINDOW for number in result.uses):
        yield (
            f"columns={WINDOW}",
            "it is not the window of the rows that a row is made of; select window itself, as the library adds it",
        )


def _keeps_windows(rows: Rows) -> bool:
    """Returns True if a column identifies the window of each row."""
    windows = (WINDOW, End(WINDOW, "start"), End(WINDOW, "end"))
    return not rows.uses or any(
        rows.uses.keys() <= origins.keys() and all(origins[n] in windows for n in rows.uses)
        for _, origins in rows.columns
    )


def _losing(rows: Rows) -> list[Rows]:
    """Returns the operators that combine rows of several windows. Row by row, the window may be left out."""
    if _keeps_windows(rows):
        return []
    # the other side of a lateral join is a subquery
    sides = rows.below[:1] if rows.plan.nodeName() == "LateralJoin" else rows.below
    lost = [operator for side in sides for operator in _losing(side)]
    if lost or (rows.plan.nodeName() in ROW_BY_ROW and not rows.asks):
        return lost
    return [rows]


def _refusal(rows: Rows) -> tuple[str, str]:
    kind = rows.plan.nodeName()
    if rows.asks or kind == "LateralJoin":
        return "operators=Subquery", f"{_ALL}; hold its window equal to that of the row outside"
    if kind == "Join" and all(side.uses for side in rows.below):
        return (
            "operators=Join",
            "it joins its input with itself across windows; add window to what it is joined by",
        )
    if kind == "Window":
        shown = rows.plan.windowExpressions().apply(0).sql()
        return f"expression={shown}", f"{_ALL}; add window to its PARTITION BY"
    if kind == "Aggregate" and rows.plan.child().nodeName() == "Expand":
        return f"operators={kind}", f"{_ALL}; add window to each of its grouping sets"
    return f"operators={kind}", f"{_ALL}; {_REMEDIES.get(kind, _OWN_TABLE)}"


def _without_rows(rows: Rows) -> tuple[str, str]:
    """Returns the operator whose rows are made of no row of a window, with the remedy."""
    for side in rows.below:
        if side.uses and not side.from_input:
            return _without_rows(side)
    return (
        f"operators={rows.plan.nodeName()}",
        "it gives rows that no row of a window makes, such as those of a reference table alone: each window would have them; "
        "let the rows of the window decide (a left join from them, a union of them alone)",
    )
