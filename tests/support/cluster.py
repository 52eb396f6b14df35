"""A Spark cluster: a master and a worker in processes of their own."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from support.sensors_job import awaited

SPARK_CLASS = Path(pyspark.__file__).with_name("bin") / "spark-class"
LIMIT = 240  # seconds


@dataclass(frozen=True)
class Cluster:
    address: str
    worker: int  # its pid


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A master with one worker of two cores."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    worker = ["--cores", "2", "--memory", "2g", "--work-dir", str(folder / "work"), address]
    with ExitStack() as processes:
        log = processes.enter_context((folder / "cluster.log").open("wb"))
        for kind, given in (("master.Master", ["--port", str(port)]), ("worker.Worker", worker)):
            command = [
                SPARK_CLASS,
                f"org.apache.spark.deploy.{kind}",
                "--webui-port",
                "0",
                "--host",
                "127.0.0.1",
            ]
            here = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
            process = processes.enter_context(
                subprocess.Popen([*command, *given], env=here, stdout=log, stderr=log)
            )
            processes.callback(end, process)
        awaited(
            lambda: "Registering worker" in (folder / "cluster.log").read_text(),
            "the worker is there",
            LIMIT,
        )
        yield Cluster(address, process.pid)


def end(process: subprocess.Popen) -> None:
    """Ends a worker with its executors."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    _, left = psutil.wait_procs(family, 30)
    for each in left:
        with suppress(psutil.NoSuchProcess):
            each.kill()
