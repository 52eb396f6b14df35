"""The page of the shop, typed: its job is killed once, and the topic of recommendations, replayed, is the table."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from deltalake import DeltaTable, QueryBuilder

from lakehouse.declare import catalog
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.storage.disk.layout import table_path
from streaming_jobs.supervision import supervisor
from streaming_jobs.supervision.jobs import follower_of
from support import ROOT
from support.sensors_job import awaited

LAKEHOUSE = Path(sys.executable).with_name("lakehouse")
PAGE = (ROOT / "docs" / "start" / "shop.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def settings(tmp_path, quick_jvm):
    settings = Settings(
        root=tmp_path,
        jars=from_environment().jars,
        tables=("examples.shop.tables",),
        spark_conf=quick_jvm,
    )
    yield settings
    for left in ("publish stop shop.recommendations", "stream stop", "broker stop"):
        run(settings, left.split())


def run(settings: Settings, words: list[str]) -> subprocess.CompletedProcess:
    environment = os.environ | to_environment(settings)
    command = [str(LAKEHOUSE), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_the_page_is_typed_the_job_killed_once_and_the_topic_replayed_is_the_table(settings):
    given = [
        words[1:]
        for line in blocks("bash")[0].splitlines()
        if (words := shlex.split(line, comments=True))[0] == "lakehouse"
    ]
    assert len(given) == 12
    declared = catalog.load(settings).table("recommendations")
    path = table_path(settings, declared)
    for words in given:
        if words[:2] == ["broker", "stop"]:
            replayed = replay(settings)
        done = run(settings, words)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        if words[:2] == ["stream", "start"]:
            awaited(lambda: rows(path), "recommendations", 240)
            os.kill(supervisor.status(settings, "shop").pid, signal.SIGKILL)
            awaited(lambda: supervisor.status(settings, "shop").state == "dead", "seen to be dead")
            assert run(settings, words).returncode == 0
        elif words[:2] == ["table", "get"]:
            assert "chair" in done.stdout or "lamp" in done.stdout
        elif words[:2] == ["stream", "stop"]:
            awaited(lambda: held(settings) == DeltaTable(path).version(), "all is published")
    table = {
        str(row["product_id"]).encode(): json.loads(value_of(row))["others"] for row in rows(path)
    }
    assert replayed == table and len(table) > 40


def held(settings: Settings) -> int:
    """The version of the table that the topic holds."""
    return supervisor.status(settings, follower_of("shop.recommendations")).queries[0].batch


def rows(path: Path) -> list[dict]:
    if not DeltaTable.is_deltatable(str(path)):
        return []
    read = QueryBuilder().register("recommendations", DeltaTable(path))
    found = read.execute("SELECT product_id, others FROM recommendations").read_all()
    return pa.table(found).to_pylist()


def replay(settings: Settings) -> dict[bytes, list]:
    """What the page's reader has at the end of the topic."""
    known: dict = {}
    exec(blocks("python")[0], known)
    own = {
        "group.id": "front-end",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(client_config(settings) | own)
    consumer.subscribe(["shop.recommendations"])
    recommended: dict[bytes, list] = {}
    while not recommended:  # until the group has its partitions
        known["read_on"](consumer, recommended)
    consumer.close()
    return recommended
