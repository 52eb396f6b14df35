"""What of a micro-batch is counted while Spark computes it, and in which of Spark's sessions that is."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, Observation


def observed(observation: Observation) -> dict[str, object] | None:
    """What was observed; None if Spark saw that no row can come, and removed the observation with the rest of the plan."""
    return observation.get if observation._jo.getRow().length() else None


def beside(rows: DataFrame, others: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The `others` in the Spark session of `rows`. A micro-batch belongs to its query's own session.

    SQL finds no view of another session, and an observation made in one session never ends if the plan runs in another.
    """
    session = rows.sparkSession
    of_plan = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows
    plans = {name: each._jdf.queryExecution().analyzed() for name, each in others.items()}
    return {name: DataFrame(of_plan(session._jsparkSession, each), session) for name, each in plans.items()}
