"""What of a micro-batch is counted while Spark computes it."""

from pyspark.sql import Observation


def observed(observation: Observation) -> dict[str, object] | None:
    """What was observed.

    None if Spark saw that no row can come, and removed the observation with the rest of the plan.
    """
    return observation.get if observation._jo.getRow().length() else None
