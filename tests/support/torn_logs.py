"""Commit logs that are cut in the middle of a line."""

from pathlib import Path

from lakehouse.declare import catalog
from lakehouse.settings import Settings
from lakehouse.storage.log import commit_cache
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit

TABLES = ("sensor_readings", "valid_readings", "sensor_averages")


def table_of(settings: Settings, name: str):
    return catalog.load(settings).table(name)


def lines_of(settings: Settings, name: str) -> list[Commit]:
    return list(reversed(list(CommitLog(settings, table_of(settings, name)))))


def commit_log_of(settings: Settings, name: str) -> Path:
    return CommitLog(settings, table_of(settings, name)).path


def cut(settings: Settings, name: str, lines: int) -> None:
    """Cuts the commit log in the middle of a line, so that this one and those behind it are gone."""
    path = commit_log_of(settings, name)
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[:-lines]) + kept[-lines][:100])


def empty(commit_log: CommitLog) -> None:
    """Has nothing be known of the commits of a table that has rows."""
    commit_log.path.write_bytes(commit_cache.first_line(0))
