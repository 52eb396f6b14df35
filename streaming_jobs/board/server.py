"""`lakehouse board`: the page, its events and the facts of a table, over HTTP on this machine alone."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from lakehouse import own_host
from lakehouse.cli.http_server import Guard, as_json, encoded, listen
from lakehouse.errors import SettingsError
from lakehouse.storage.lakehouse import Lakehouse
from streaming_jobs.board.facts import Facts

_LOOK = 0.25  # seconds between two questions what has changed
_PING = 10.0  # seconds of silence after which a browser is sent no part, so that it knows that the board is there


def run(lakehouse: Lakehouse, host: str, port: int) -> None:
    """Serves until a signal ends it. Raises SettingsError for an address that other machines reach."""
    if not own_host.is_loopback(host):
        raise SettingsError(
            f"host={host}: the board has no authentication, so it listens on the loopback interface alone; from another "
            f"machine, use `ssh -L {port}:127.0.0.1:{port} HOST`"
        )
    listen(application(lakehouse, host), host, port, "/")


def application(lakehouse: Lakehouse, host: str = "127.0.0.1") -> Starlette:
    """Returns the server of the board:

    GET /               the page
    GET /events         the parts of the board, all of them and then those that change, as server-sent events
    GET /tables/TABLE   what the page of a table has beside its lane
    """
    facts = Facts(lakehouse)

    async def events(request: Request) -> Response:
        return StreamingResponse(
            _changes(request, facts),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    def table(request: Request) -> Response:
        lane = facts.lanes.get(request.path_params["table"])
        if lane is None:
            return as_json({"error": f"table={request.path_params['table']}: not declared"}, 404)
        return as_json(lane.page())

    page = StaticFiles(directory=Path(__file__).parent / "page", html=True)
    return Starlette(
        routes=[Route("/events", events), Route("/tables/{table}", table), Mount("/", page)],
        middleware=[Middleware(Guard, host)],
    )


async def _changes(request: Request, facts: Facts) -> AsyncIterator[str]:
    """Yields the parts that have changed, as events; nobody looks at the files while no browser is there."""
    seen = 0
    sent_at = time.monotonic()
    server = request.app.state.server
    while not (server.should_exit or await request.is_disconnected()):
        seen, changed = await run_in_threadpool(facts.since, seen)
        if changed or time.monotonic() - sent_at > _PING:
            yield f"data: {encoded(changed)}\n\n"
            sent_at = time.monotonic()
        await asyncio.sleep(_LOOK)
