"""What the tests with processes share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import Cluster, running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master with one worker of two cores; its log is `cluster.log` in the folder of the test."""
    with running(tmp_path) as cluster:
        yield cluster
