"""HTTPS in front of a server that speaks HTTP: with a certificate of its own, for one user with a password."""

import base64
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

AUTHORITY, _KEY = "authority.pem", "key.pem"


@contextmanager
def https(url: str, user: str, password: str, home: Path) -> Iterator[int]:
    """The port of the loopback at which `url` is; the file `authority.pem` in `home` has the certificate."""
    _certify(home)
    expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            if self.headers.get("Authorization") != expected:
                self._answer(401, b"Unauthorized")
                return
            kind = {"Content-Type": self.headers.get("Content-Type", "")}
            asked = Request(url + self.path, body, kind, method=self.command)
            try:
                with urlopen(asked, timeout=60) as found:
                    self._answer(found.status, found.read())
            except HTTPError as err:
                self._answer(err.code, err.read())

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a client that does not trust the certificate goes without a request."""

    front = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(home / AUTHORITY, home / _KEY)
    # the handshake is that of the thread of a connection, so that a client that goes in its middle ends no more than that
    front.socket = context.wrap_socket(
        front.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    try:
        yield front.server_port
    finally:
        front.shutdown()
        front.server_close()
        thread.join()


def _certify(home: Path) -> None:
    """A self-signed certificate of 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "front")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (home / AUTHORITY).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (home / _KEY).write_bytes(private)
