"""A schema registry's interface over a dictionary, and values as a producer with that registry writes them.

It stands for a registry where tests are about what the lakehouse makes of its answers.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

SCHEMAS, SUBJECTS = "/schemas/ids/", "/subjects/"


@dataclass
class Served:
    """What the registry knows, and what it was asked."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    away: bool = False
    breaks_off: bool = False  # in the middle of an answer
    foreign: str = ""  # what something else answers at that address
    refuses: bool = False  # whatever is registered
    asked: list[tuple[str, str]] = field(default_factory=list)  # path, authorization

    def register(self, number: int, schema: object, subject: str = "", **more: Any) -> None:
        text = schema if more.get("schemaType") == "PROTOBUF" else json.dumps(schema)
        self.schemas[number] = {"schema": text} | more
        self.newest[subject] = number

    def registered(self, path: str, given: dict[str, Any]) -> tuple[int, object]:
        """What a producer is answered: the id that the schema has, or gets."""
        if self.away:
            return 503, {"error_code": 50301, "message": "not now"}
        if self.refuses:
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
        kind = {"schemaType": given["schemaType"]} if given["schemaType"] != "AVRO" else {}
        found = {"schema": given["schema"]} | kind
        there = [n for n, each in self.schemas.items() if each == found]
        number = there[0] if there else max(self.schemas, default=0) + 1
        self.schemas[number] = found
        self.newest[unquote(path).removeprefix(SUBJECTS).removesuffix("/versions")] = number
        return 200, {"id": number}

    def answer(self, path: str) -> tuple[int, object]:
        path = unquote(path)
        if self.away:
            return 503, {"error_code": 50301, "message": "not now"}
        if path.startswith(SCHEMAS):
            number, _, query = path.removeprefix(SCHEMAS).partition("?")
            found = self.schemas.get(int(number))
            if found and query == "format=resolved":
                found = {"schema": found["resolved"]}
            return (200, found) if found else (404, {"error_code": 40403})
        subject, _, version = path.removeprefix(SUBJECTS).rpartition("/versions/")
        newest = self.newest.get(subject) if version in ("latest", "1") else None
        if newest is None:
            return 404, {"error_code": 40401}
        return 200, {"id": newest, "version": 1} | self.schemas[newest]


@contextmanager
def served() -> Iterator[Served]:
    known = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*known.answer(self.path))

        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(*known.registered(self.path, given))

        def _answer(self, code: int, value: object) -> None:
            known.asked.append((self.path, self.headers.get("Authorization", "")))
            self.send_response(200 if known.foreign else code)
            if known.breaks_off:
                self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write((known.foreign or json.dumps(value)).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()


def record(*fields: tuple[str, object], name: str = "order") -> dict[str, Any]:
    """A schema of Avro."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields],
    }


def framed(number: int, payload: bytes) -> bytes:
    return b"\0" + struct.pack(">I", number) + payload


def protobuf(number: int, message: Any, *indexes: int) -> bytes:
    """A message as a producer sends it: by default the first of its schema, in the short form."""
    places = _long(len(indexes)) + b"".join(map(_long, indexes)) if indexes else b"\0"
    return framed(number, places + message.SerializeToString())


def avro(number: int, schema: Mapping[str, Any], *values: object) -> bytes:
    """The values of a record's fields as a producer sends them."""
    pairs = zip(schema["fields"], values, strict=True)
    return framed(number, b"".join(_encoded(each["type"], value) for each, value in pairs))


def _encoded(kind: Any, value: Any) -> bytes:
    if isinstance(kind, list):  # a union of null and another
        return b"\0" if value is None else b"\2" + _encoded(kind[1], value)
    name = kind if isinstance(kind, str) else kind["type"]
    if name == "record":
        return b"".join(_encoded(each["type"], value[each["name"]]) for each in kind["fields"])
    if name == "array":
        return _long(len(value)) + b"".join(_encoded(kind["items"], v) for v in value) + b"\0"
    if name == "map":
        pairs = (_encoded("string", k) + _encoded(kind["values"], v) for k, v in value.items())
        return _long(len(value)) + b"".join(pairs) + b"\0"
    if name == "enum":
        return _long(kind["symbols"].index(value))
    if name in ("float", "double"):
        return struct.pack("<f" if name == "float" else "<d", value)
    if name in ("string", "bytes"):
        content = value.encode() if isinstance(value, str) else value
        return _long(len(content)) + content
    return _long(value)


def _long(value: int) -> bytes:
    """Zigzag, seven bits a byte."""
    rest, found = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])
