"""The records that a step of an ingest table reads, to be judged by the table's plan."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame

from lakehouse.stream.micro_batch import StreamRun
from lakehouse.transform.decoding import schemas
from lakehouse.transform.decoding.schemas import NO_SCHEMAS, Schemas


@dataclass(frozen=True)
class RawRecords:
    """The records that a step of an ingest table reads, and the schemas of their values."""

    run: StreamRun
    records: Mapping[str, DataFrame | pa.Table]
    schemas: Schemas
    tasks: int = 0  # the number of tasks that they are coalesced into; 0: as they come

    @cached_property
    def judged(self) -> DataFrame:
        spark = self.run.session.spark
        frames = {
            name: each if isinstance(each, DataFrame) else spark.createDataFrame(each)
            for name, each in self.records.items()
        }
        rows = self.run.plan.ingest(frames, self.schemas)
        return rows.coalesce(self.tasks) if self.tasks else rows

    @property
    def here(self) -> dict[str, pa.Table] | None:
        """Returns the records, if they are in memory and need no schema that came with them."""
        here = {name: each for name, each in self.records.items() if isinstance(each, pa.Table)}
        return here if len(here) == len(self.records) and self.schemas is NO_SCHEMAS else None


def raw_records(
    run: StreamRun, records: Mapping[str, DataFrame | pa.Table], unknown: Collection[int] = ()
) -> RawRecords:
    """Returns raw records of an ingest table's inputs, with the schemas of their values.

    `unknown`: ids that the registry did not know when a part of the same batch was written. Raises RegistryAway.
    """
    of_records = schemas.of_records(run.session, run.table, run.plan.sources, records, unknown)
    return RawRecords(run, records, of_records)
