"""What of a micro-batch is counted while Spark computes it."""

from typing import Any

from pyspark.sql import DataFrame, Observation, Row


def observed(observation: Observation) -> dict[str, Any] | None:
    """What was observed.

    None if Spark saw that no row can come, and removed the observation with the rest of the plan.
    """
    handle: Any = observation._jo
    return observation.get if handle.getRow().length() else None


def only(aggregated: DataFrame) -> Row:
    """The one row of an aggregation over all rows."""
    found = aggregated.head()
    assert found is not None
    return found
