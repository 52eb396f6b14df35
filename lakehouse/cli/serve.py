"""`lakehouse serve`: the rows of a key over HTTP, from the newest version of its table, without a JVM."""

import logging

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakehouse import own_host
from lakehouse.cli import console
from lakehouse.cli.http_server import Guard, as_json, listen
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError, RangeError, UnknownTable
from lakehouse.ranges import past_beginning
from lakehouse.storage.delta import delta_log
from lakehouse.storage.keyed import point_reads
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier

_log = logging.getLogger(__name__)


def run(lakehouse: Lakehouse, host: str, port: int) -> None:
    """Serves rows until a signal ends it; prints the address once it listens."""
    if not own_host.is_loopback(host):
        console.print_note(
            f"host={host}: whoever reaches this address reads the tables; put a proxy with authentication in front"
        )
    listen(application(lakehouse, host), host, port, "/tables")


def application(lakehouse: Lakehouse, host: str = "127.0.0.1") -> Starlette:
    """Returns the server of a catalogue's keyed and versioned tables:

    GET /tables                              these tables, and the columns of their keys
    GET /tables/TABLE?COLUMN=VALUE&...       the rows of a key, their version, and the frontier behind which they are complete

    An error is `{"error": ...}`: 400 for a key that the table cannot have, 404 for a table or a key that is not there, 503 for a
    table that cannot be read.
    """
    by_key = {table.name: table for table in lakehouse.catalog if table.kind.is_upserted}

    def tables(request: Request) -> Response:
        return as_json([_described(table) for table in by_key.values()])

    def rows(request: Request) -> Response:
        table = lakehouse.catalog.table(request.path_params["table"])
        asked = list(request.query_params.multi_items())
        if table.kind.is_upserted and sorted(name for name, _ in asked) != sorted(table.keys):
            raise RangeError(
                f"table={table.name}, columns={', '.join(name for name, _ in asked) or 'none'}: a key has one value of each of "
                f"{', '.join(table.keys)}; ask for /tables/{table.name}?{'&'.join(f'{name}=…' for name in table.keys)}"
            )
        path = lakehouse.path(table)
        if not delta_log.exists(path):
            raise LakehouseError(
                f"table={table.name}: it is not made yet; start its job by `lakehouse stream start`"
            )
        values = (request.query_params[name] for name in table.keys)
        # before the rows, which may be of a later version
        complete = frontier(lakehouse.settings, table)
        read = point_reads.find(path, table.keys if table.kind.is_upserted else (), *values)
        answer: dict[str, object] = {
            "table": table.name,
            "version": read.version,
            "frontier": past_beginning(complete),
            "rows": read.rows,
        }
        if not read.rows:
            answer["error"] = (
                f"table={table.name}, version={read.version}: no row has this key; look for other keys with `lakehouse query`"
            )
        return as_json(answer, 200 if read.rows else 404)

    def refused(request: Request, err: Exception) -> Response:
        statuses = {UnknownTable: 404, RangeError: 400}
        status = next((statuses[kind] for kind in statuses if isinstance(err, kind)), 503)
        if status == 503:
            _log.warning(str(err))
        foreseen = isinstance(err, LakehouseError)
        return as_json({"error": str(err) if foreseen else f"{type(err).__name__}: {err}"}, status)

    return Starlette(
        routes=[Route("/tables", tables), Route("/tables/{table}", rows)],
        middleware=[Middleware(Guard, host)],
        # the log has the traceback of an unforeseen error
        exception_handlers={LakehouseError: refused, Exception: refused},
    )


def _described(table: Table) -> dict[str, object]:
    return {"table": table.name, "kind": table.kind.name, "keys": list(table.keys)}
