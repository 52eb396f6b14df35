"""A SQL query as the function of a table."""

import inspect
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Any

from lakehouse.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sql(name: str, query: str, description: str = "") -> Callable[..., "DataFrame"]:
    """Returns a function that runs a SQL query, for a decorator.

        campaign_clicks = window_table(layer="gold", window=tumbling("10 seconds"), keys=["campaign_id"])(
            sql(
                "campaign_clicks",
                "SELECT window, campaign_id, count(*) AS clicks FROM {ad_events} JOIN {campaigns} USING (ad_id) "
                "WHERE event_type = 'click' GROUP BY window, campaign_id",
            )
        )

    :param name: of the table and of the variable.
    :param query: Spark's SQL. Inputs stand in braces; a brace of SQL's own is written twice.
    :param description: shown in the UI.
    :raises DeclarationError: for a query without an input, and for a stray brace.
    """
    try:
        fields = [field for _, field, _, _ in Formatter().parse(query) if field is not None]
    except ValueError as err:
        raise DeclarationError(
            f"table={name}, query: {err}; write a brace that is not an input's twice"
        ) from err
    inputs = tuple(dict.fromkeys(fields))
    if unusable := [i for i in inputs if not i.isidentifier()]:
        raise DeclarationError(
            f"table={name}, input={unusable[0]!r}: inputs are names in braces, such as {{ad_events}}"
        )
    if not inputs:
        raise DeclarationError(
            f"table={name}: the query names no input; write it in braces, such as FROM {{ad_events}}"
        )

    def transformation(**frames: Any) -> "DataFrame":
        spark: SparkSession = next(iter(frames.values())).sparkSession
        return spark.sql(query, **frames)

    parameters = [inspect.Parameter(i, inspect.Parameter.POSITIONAL_OR_KEYWORD) for i in inputs]
    # functions take any attribute, and their type knows none of them
    transformation.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    transformation.query = query  # type: ignore[attr-defined]
    transformation.__name__, transformation.__doc__ = name, description
    transformation.__module__ = inspect.stack()[1].frame.f_globals["__name__"]
    return transformation
