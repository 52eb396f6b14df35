"""A small HTTP service on loopback that says where an address is: slow, failing or of another opinion, as a test asks."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Places:
    """What the service says, and how often it was asked for each address."""

    def __init__(self) -> None:
        self.url = ""
        self.open = self.most_open = 0
        self._lock = threading.Lock()
        self.say()

    def say(self) -> None:
        """Has it answer at once, and forget who asked."""
        self.asked: Counter[str] = Counter()
        self.opinion = 1
        self.seconds = 0.0
        self.failing: set[str] = set()
        self.hanging: set[str] = set()
        self.unknown: set[str] = set()

    def answer(self, address: str) -> tuple[int, object]:
        with self._lock:
            self.asked[address] += 1
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            time.sleep(2 if address in self.hanging else self.seconds)
        finally:
            with self._lock:
                self.open -= 1
        if address in self.failing:
            return 503, "busy"
        if address in self.unknown:
            return 404, "no such address"
        return 200, {"country": f"country {address}", "opinion": self.opinion}


@contextmanager
def serving(places: Places) -> Iterator[None]:
    """Runs the service on a free port, and sets `places.url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, value = places.answer(self.path.removeprefix("/"))
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    places.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
