"""Spark's Python daemon, whose workers leave garbage to the collector's own thresholds.

PySpark's collects all of it after each task of a reused worker: 50 ms of CPU with PyArrow and pandas loaded, which is more than
a small step takes.
"""

from types import SimpleNamespace

from pyspark import daemon

if __name__ == "__main__":
    daemon.gc = SimpleNamespace(collect=lambda: 0)  # type: ignore[assignment]
    daemon.manager()
