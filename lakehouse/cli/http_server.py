"""The server of HTTP that `lakehouse serve` and `lakehouse board` share."""

import json
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lakehouse import own_host
from lakehouse.cli import console
from lakehouse.errors import LakehouseError


def listen(app: Starlette, host: str, port: int, path: str) -> None:
    """Serves an application until a signal ends it; prints the address of its `path` once it listens.

    `app.state.server.should_exit` says that it is to end, for answers without an end.
    """
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as err:
        raise LakehouseError(
            f"host={host}, port={port}: cannot be listened on ({err}); choose others by --host and --port"
        ) from err
    shown = f"[{host}]" if ":" in host else host
    console.print_text(f"http://{shown}:{listening.getsockname()[1]}{path}")
    config = uvicorn.Config(app, log_config=None, log_level="warning", access_log=False)
    app.state.server = uvicorn.Server(config)
    app.state.server.run(sockets=[listening])


def as_json(value: object, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")


def encoded(value: object) -> str:
    return json.dumps(value, default=console.plain, ensure_ascii=False)


class Guard:
    """Refuses a request whose header `Host` names another server."""

    def __init__(self, app: ASGIApp, listening: str) -> None:
        self._app, self._listening = app, listening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            header = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not own_host.answers(self._listening, header):
                app = Response(own_host.REFUSED, 421, media_type="text/plain")
        await app(scope, receive, send)
