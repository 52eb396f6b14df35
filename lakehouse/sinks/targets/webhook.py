"""Requests of HTTP as targets: each row that a table adds is posted once to an address."""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from typing import Any, ClassVar
from urllib.parse import urlsplit

from lakehouse.declare.targets import Action, Change, Corrections, columns_of
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.runtime.http_client import Client, Unanswered
from lakehouse.sinks.actions import ActionTarget, Answer, Begin, Performer
from lakehouse.sinks.base import filled

_REFUSES_ALL = (301, 302, 303, 307, 308, 401, 403, 404, 405, 407, 410)  # whatever the row
_NOT_NOW = (429, 503)
_AGAIN = (408, 409, 425)  # and all from 500 on
_SAID = 200  # characters of an answer that are kept
_LONGEST = 3600.0  # seconds for which an answer may ask not to be asked


@dataclass(frozen=True, slots=True)
class Webhook(ActionTarget):
    """An address of HTTP to which rows are posted."""

    symbol: ClassVar[str] = "http"
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    secret: str = field(repr=False)
    body: Callable[[Action], Any] | None
    timeout: float

    def performer(self) -> "Performer":
        return _Poster(self)


def webhook(
    name: str,
    url: str,
    *,
    key: str | Sequence[str],
    on: Change | Sequence[Change] = "insert",
    body: Callable[[Action], Any] | None = None,
    headers: Mapping[str, str] | None = None,
    secret: str = "",
    begin: Begin = "next",
    rate: str = "",
    attempts: int = 10,
    timeout: float = 10.0,
    corrections: Corrections = "send",
) -> Webhook:
    """An address to which each row that a table adds is posted: `publish=[webhook(...)]`.

        @row_table(layer="gold", publish=[webhook("alerts", "https://example.org/alerts", key=["account", "at"])])
        def alerts(transactions: DataFrame) -> DataFrame: ...

    Each request has the header `Idempotency-Key`, by which the receiver knows one that it had already.
    In `url`, `headers` and `secret`, `${NAME}` is the variable of that name in the environment of the follower.

    :param name: names the target in commands.
    :param url: `http://` or `https://`.
    :param key: the columns that identify a row.
    :param on: "insert", "update", "delete", or several of them: for which changes of rows it acts.
    :param body: gives what is sent as JSON for an action. Default: id, table, version, change and row.
    :param headers: further headers.
    :param secret: signs each request as Standard Webhooks says, with `whsec_` and base64, or any text.
    :param begin: "next" leaves the rows out that are there when the follower starts for the first time; "all" does not.
    :param rate: so many requests at most, as "5/second", "100/minute" or "1000/hour". Default: no limit.
    :param attempts: failed ones (answers 500 and above, but 503) after which an action counts as refused.
    :param timeout: seconds for one request.
    :param corrections: "send" or "ignore" what changes rows that were final before.
    :raises DeclarationError: for values that cannot be.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise DeclarationError(
            f"target={name}, url={url!r}: an address is http://HOST... or https://HOST...; write it so"
        )
    if timeout <= 0:
        raise DeclarationError(f"target={name}, timeout={timeout}: seconds above 0; raise it")
    return Webhook(
        name=name,
        key=columns_of(key),
        corrections=corrections,
        on=columns_of(on),
        begin=begin,
        rate=rate,
        attempts=attempts,
        url=url,
        headers=tuple((headers or {}).items()),
        secret=secret,
        body=body,
        timeout=timeout,
    )


class _Poster(Performer):
    def __init__(self, target: Webhook) -> None:
        self._target = target
        self._url = filled(target.name, target.url)
        self._headers = {name: filled(target.name, text) for name, text in target.headers}
        self._secret = _key_of(target.name, filled(target.name, target.secret))
        self._client = Client()

    def perform(self, action: Action) -> Answer:
        try:
            body = json.dumps(self._body(action), ensure_ascii=False).encode()
        except Exception as err:
            return Answer("refused", f"body: {type(err).__name__}: {err}")
        headers, within = self._headers_of(action, body), self._target.timeout
        try:
            with self._client.ask("POST", self._url, body, headers, within=within) as response:
                return self._answer(response)
        except Unanswered as err:
            raise SinkAway(
                f"target={self._target.name}, url={self._target.url}: it does not answer ({err.why!r})"
            ) from err

    def close(self) -> None:
        self._client.close()

    def _body(self, action: Action) -> Any:
        if self._target.body:
            return self._target.body(action)
        return {name: getattr(action, name) for name in ("id", "table", "version", "change", "row")}

    def _headers_of(self, action: Action, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "unified-lakehouse",
            "Idempotency-Key": action.id,
        }
        if self._secret:
            at = str(int(time.time()))
            message = f"{action.id}.{at}.".encode() + body
            signed = base64.b64encode(hmac.digest(self._secret, message, hashlib.sha256)).decode()
            headers |= {
                "webhook-id": action.id,
                "webhook-timestamp": at,
                "webhook-signature": f"v1,{signed}",
            }
        return headers | self._headers

    def _answer(self, response: HTTPResponse) -> Answer:
        status = response.status
        if 200 <= status < 300:
            return Answer("done", str(status))
        text = " ".join(response.read(_SAID).decode(errors="replace").split())
        answer = f"{status} {response.reason}{f': {text}' if text else ''}"
        named = f"target={self._target.name}, url={self._target.url}"
        if status in _REFUSES_ALL:
            raise SinkError(
                f"{named}: it refuses every request ({answer}); correct url, headers or secret, and "
                f"`lakehouse publish start {self._target.name}`"
            )
        if status in _NOT_NOW:
            raise SinkAway(
                f"{named}: not now ({answer})", _after(response.headers.get("Retry-After"))
            )
        return Answer("failed" if status >= 500 or status in _AGAIN else "refused", answer)


def _key_of(target: str, secret: str) -> bytes:
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as err:
        raise SinkError(
            f"target={target}, secret: base64 comes after whsec_, and this is none ({err}); copy it from the receiver again"
        ) from err


def _after(given: str | None) -> float:
    """Returns the seconds that an answer asks for, as a number or as an instant."""
    try:
        seconds = float(given or 0)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(given or "").timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), _LONGEST)
