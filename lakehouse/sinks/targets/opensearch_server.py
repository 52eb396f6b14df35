"""A server of OpenSearch: requests over HTTP, and the meaning of its answers for a target."""

import base64
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from lakehouse.errors import SinkError
from lakehouse.runtime.http_client import Client, Unanswered
from lakehouse.sinks import base
from lakehouse.sinks.base import Meaning

_WITHIN = 60.0  # seconds for an answer
_MEANINGS: dict[int, Meaning] = {
    **dict.fromkeys((408, 429, 502, 503, 504), "away"),
    **dict.fromkeys((401, 403), "refused"),
}
_BLOCKED = "cluster_block_exception"  # such as a disk that is full: until somebody sees to it
_LONGEST = 400  # characters of an answer that an error has


class Server:
    """One server, or what stands in front of several."""

    def __init__(self, target: str, url: str) -> None:
        self._target, self._url = target, url
        self._client = Client()
        self._base = ""
        self._headers: dict[str, str] = {}

    def ask(
        self, method: str, path: str, body: object = None, answers: tuple[int, ...] = ()
    ) -> tuple[int, dict[str, Any]]:
        """Returns status and content of the answer. The status is 200, 201 or one of `answers`.

        Text as `body` goes as it is, one JSON a line; anything else as JSON. Raises SinkAway where the server cannot answer
        now, and SinkError for any other answer.
        """
        self._prepare()
        lines = isinstance(body, str)
        text = str(body) if lines else json.dumps(body, ensure_ascii=False)
        headers = self._headers | {"Content-Type": f"application/{'x-nd' if lines else ''}json"}
        content, url = None if body is None else text.encode(), self._base + path
        try:
            with self._client.ask(method, url, content, headers, within=_WITHIN) as answer:
                status, parsed = answer.status, _parsed(answer.read())
        except Unanswered as err:
            if isinstance(err.why, ssl.SSLCertVerificationError):
                raise SinkError(
                    f"target={self._target}: the certificate of the server does not hold ({err.why.verify_message}); name the "
                    "file with its authority in SSL_CERT_FILE of the follower's environment, and start it"
                ) from err
            raise base.failure(f"target={self._target}", "away", repr(err.why)) from err
        if status in (200, 201, *answers):
            return status, parsed
        where = f"target={self._target}, {method} {path.partition('?')[0]}"
        raise refusal(where, status, parsed.get("error"))

    def close(self) -> None:
        self._client.close()

    def _prepare(self) -> None:
        """Fills in the variables, when the server is needed first."""
        if self._base:
            return
        parts = urlsplit(self._url)
        account, _, host = parts.netloc.rpartition("@")
        self._headers = {"User-Agent": "unified-lakehouse"}
        if account:
            name, _, password = account.partition(":")
            both = (base.filled(self._target, unquote(part)) for part in (name, password))
            basic = base64.b64encode(":".join(both).encode()).decode()
            self._headers["Authorization"] = f"Basic {basic}"
        self._base = base.filled(self._target, f"{parts.scheme}://{host}{parts.path.rstrip('/')}")


def refusal(where: str, status: int, error: object) -> SinkError:
    """Returns the error to raise for an answer."""
    meaning = "away" if kind(error) == _BLOCKED else _MEANINGS.get(status, "failed")
    return base.failure(where, meaning, f"{status} {reason(error)}".strip())


def kind(error: object) -> str:
    """Returns the kind of an error in an answer, as OpenSearch names it."""
    return str(error.get("type", "")) if isinstance(error, Mapping) else ""


def reason(error: object) -> str:
    """Returns the text of an error in an answer, with its cause."""
    if not isinstance(error, Mapping):
        return str(error or "")[:_LONGEST]
    text = f"{error.get('type')}: {error.get('reason')}"
    cause = error.get("caused_by")
    return f"{text}, by {reason(cause)}"[:_LONGEST] if cause else text[:_LONGEST]


def _parsed(content: bytes) -> dict[str, Any]:
    """Returns the content of an answer. Text that is no JSON, such as a proxy's, becomes its error."""
    text = content.decode(errors="replace")
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"error": " ".join(text.split())}
