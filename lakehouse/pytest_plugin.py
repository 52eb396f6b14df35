"""Fixtures for tests of tables, available where the package is installed: `spark`, one session for all, and `testbed`.

`testbed(module)` makes a `lakehouse.testing.Stage` over the module's tables, in a folder of the test.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.testing import Stage


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Yields a Spark session as the library makes it, with one shuffle partition."""
    from dataclasses import replace

    from lakehouse.runtime import spark_session
    from lakehouse.settings import from_environment

    settings = from_environment(required=False)
    session = spark_session.create(replace(settings, shuffle_partitions=1), "tests")
    yield session
    session.stop()


@pytest.fixture
def testbed(spark: "SparkSession", tmp_path: Path) -> "Callable[..., Stage]":
    """Returns a function that makes a stage of modules of tables."""
    from lakehouse.testing import Stage

    return lambda *modules: Stage(spark, tmp_path / "lakehouse", *modules)
