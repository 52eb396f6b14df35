"""What the functions of tables are refused for, found on no rows: without a broker, and nothing is made."""

from pyspark.errors import PySparkException

from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.storage.lakehouse import Session
from lakehouse.transform import plan


def refusal(lake: Session, table: Table) -> str:
    """Why a start would refuse the table's function or expectations; empty if it would not."""
    try:
        plan.stored_schema(lake, table)
        plan.check(lake, table)
        plan.plan_of(lake, table)  # compiles the expectations
    except LakehouseError as err:
        return str(err)
    except PySparkException as err:  # a column that is not there, say
        return f"table={table.name}: its function, or one before it, cannot be run: {str(err).splitlines()[0]}"
    return ""
