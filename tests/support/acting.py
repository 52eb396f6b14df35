"""A table whose rows are posted and mailed, and a server whose answers are given."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka, mail, row_table, webhook

payment_topic = kafka(
    "payments-in", schema="account STRING, n BIGINT, amount DECIMAL(9,2), at TIMESTAMP"
)


@ingest_table(layer="bronze", event_time="at")
def payment_events(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


@row_table(
    layer="silver",
    publish=[
        webhook(
            "posted", "http://127.0.0.1:${ACTING_PORT}/rows", key=["account", "n"], begin="all"
        ),
        mail(
            "mailed",
            to="somebody@example.org",
            sender="lakehouse@example.org",
            subject="{account}: {amount}",
            text="{table} has payment {n} of {account}, {amount}, at {at}.",
            key=["account", "n"],
            rate="",
        ),
    ],
)
def payments(payment_events: DataFrame) -> DataFrame:
    return payment_events


class Posted(NamedTuple):
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> dict:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["idempotency-key"]


class Server:
    """Keeps what is posted to it. `answer` gives the status of each answer, and its headers."""

    def __init__(self, port: int) -> None:
        self.posted: list[Posted] = []
        self.answer: Callable[[Posted], tuple[int, dict[str, str]]] = lambda _: (200, {})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.port = self._server.server_address[1]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                found = Posted({n.lower(): text for n, text in self.headers.items()}, body)
                told.posted.append(found)
                status, headers = told.answer(found)
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(port: int = 0) -> Iterator[Server]:
    server = Server(port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server
    server.end()
    thread.join()
