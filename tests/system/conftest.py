"""What the tests with processes share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment
from support.cluster import Cluster, running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master with one worker of two cores; its log is `cluster.log` in the folder of the test."""
    with running(tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Settings]:
    """The settings of an embedded broker, one for the tests of a file."""
    settings = Settings(root=tmp_path_factory.mktemp("broker"), jars=from_environment().jars)
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    kafka_broker.stop(settings)
