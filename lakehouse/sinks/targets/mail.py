"""Mails as targets: each row that a table adds is written to somebody once."""

import smtplib
import ssl
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate
from functools import partial
from string import Formatter
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from lakehouse.declare.targets import Action, Change, Corrections, Row, columns_of
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.sinks.actions import ActionTarget, Answer, Begin, Performer
from lakehouse.sinks.base import filled

_SCHEMES = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}  # with the port of each
_WITHIN = 20.0  # seconds for each answer of the server
_OF_ALL = ("table", "version", "change", "key")  # what a text may name beside columns


@dataclass(frozen=True, slots=True)
class Mail(ActionTarget):
    """People to whom rows are written."""

    symbol: ClassVar[str] = "email"
    to: tuple[str, ...]
    sender: str
    subject: str
    text: str
    server: str = field(repr=False)

    def performer(self) -> "Performer":
        return _Sender(self)


def mail(
    name: str,
    *,
    to: str | Sequence[str],
    sender: str,
    subject: str,
    text: str,
    key: str | Sequence[str],
    server: str = "smtp://localhost",
    on: Change | Sequence[Change] = "insert",
    begin: Begin = "next",
    rate: str = "1/second",
    attempts: int = 10,
    corrections: Corrections = "send",
) -> Mail:
    """People to whom each row that a table adds is written: `publish=[mail(...)]`.

        @row_table(layer="gold", publish=[mail(
            "fraud", to="fraud@bank.example", sender="lakehouse@bank.example", key=["account", "at"],
            subject="Account {account}: {amount}", text="At {at} account {account} paid {amount}.",
            server="smtp+starttls://${SMTP_USER}:${SMTP_PASSWORD}@mail.bank.example")])
        def alerts(transactions: DataFrame) -> DataFrame: ...

    `Message-ID` of each mail is made of the action's id, so a mail that is sent again has the same one.

    :param name: names the target in commands.
    :param to: one address or several, all in one mail.
    :param sender: the address that it is from.
    :param subject: with columns in braces; also `{table}`, `{version}`, `{change}` and `{key}`.
    :param text: as `subject`.
    :param key: the columns that identify a row.
    :param server: `smtp://`, `smtp+starttls://` or `smtps://`, with user and password where it asks for them. `${NAME}` is the
        variable of that name in the environment of the follower; it may hold the host, the port, or `host:port`. In a user or
        password, `@`, `:` and `/` are written as `%40`, `%3A` and `%2F`; what a variable has is taken as it is.
    :param on: "insert", "update", "delete", or several of them: for which changes of rows it acts.
    :param begin: "next" leaves the rows out that are there when the follower starts for the first time; "all" does not.
    :param rate: so many mails at most, as "1/second", "100/minute" or "1000/hour"; empty: no limit.
    :param attempts: failed ones after which an action counts as refused.
    :param corrections: "send" or "ignore" what changes rows that were final before.
    :raises DeclarationError: for values that cannot be.
    """
    recipients = columns_of(to)
    if not recipients or not all("@" in address for address in (*recipients, sender)):
        raise DeclarationError(
            f"target={name}, to={list(recipients)}, sender={sender!r}: addresses of mail have an @; write them so"
        )
    parts = urlsplit(server)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise DeclarationError(
            f"target={name}, server of scheme {parts.scheme!r}: one of {', '.join(_SCHEMES)}, and a host, as smtp://localhost"
        )
    place = parts.netloc.rpartition("@")[2]
    try:
        if "${" not in place:
            _place(place)
    except ValueError as err:
        raise DeclarationError(
            f"target={name}, server with {place!r}: a host, or host:port with a number up to 65535 ({err}); write it so"
        ) from err
    for what, template in (("subject", subject), ("text", text)):
        try:
            _columns(template)
        except ValueError as err:
            raise DeclarationError(
                f"target={name}, {what}={template!r}: a column is written {{account}}, a brace doubled ({err}); correct it"
            ) from err
    return Mail(
        name=name,
        key=columns_of(key),
        corrections=corrections,
        on=columns_of(on),
        begin=begin,
        rate=rate,
        attempts=attempts,
        to=recipients,
        sender=sender,
        subject=subject,
        text=text,
        server=server,
    )


class _Sender(Performer):
    def __init__(self, target: Mail) -> None:
        self._target = target
        parts = urlsplit(target.server)
        self._scheme = parts.scheme
        place = filled(target.name, parts.netloc.rpartition("@")[2])
        try:
            self._host, port = _place(place)
        except ValueError as err:
            raise SinkError(
                f"target={target.name}, server={place.rpartition('@')[2]!r}: it must be a host, or host:port up to 65535 "
                f"({err}); correct its variable, and start the follower again"
            ) from err
        self._port = port or _SCHEMES[parts.scheme]
        # filled after the address was taken apart: a password may have any character
        self._user, self._password = (
            filled(target.name, unquote(part or "")) for part in (parts.username, parts.password)
        )
        self._server: smtplib.SMTP | None = None

    def check(self, columns: Collection[str]) -> None:
        for what, template in (("subject", self._target.subject), ("text", self._target.text)):
            if unknown := sorted(_columns(template) - {*columns, *_OF_ALL}):
                raise SinkError(
                    f"target={self._target.name}, {what} with {{{unknown[0]}}}: the table has no such column; name one of "
                    f"{', '.join(name for name in columns if name[0] != '_')}"
                )

    def perform(self, action: Action) -> Answer:
        try:
            message = self._message(action)
        except (ValueError, LookupError, AttributeError, TypeError) as err:
            return Answer("refused", f"text: {type(err).__name__}: {err}")
        try:
            server = self._server = self._server or self._connected()
            left_out = server.send_message(message)
        except smtplib.SMTPRecipientsRefused as err:
            self._reset()
            return _answer({code for code, _ in err.recipients.values()}, str(err.recipients))
        except smtplib.SMTPDataError as err:
            self._reset()
            return _answer({err.smtp_code}, str(err))
        except (smtplib.SMTPAuthenticationError, smtplib.SMTPSenderRefused) as err:
            self.close()
            if err.smtp_code < 500:
                raise self._away(err) from err
            raise SinkError(
                f"target={self._target.name}: the server refuses every mail ({err}); correct user, password or sender, and "
                f"`lakehouse publish start {self._target.name}`"
            ) from err
        except smtplib.SMTPNotSupportedError as err:
            self.close()
            raise SinkError(
                f"target={self._target.name}, server={self._host}: {err}; take another scheme or no password"
            ) from err
        except (smtplib.SMTPException, OSError) as err:
            self.close()
            raise self._away(err) from err
        return Answer("done", f"without {', '.join(left_out)}" if left_out else "250")

    def close(self) -> None:
        if self._server:
            with suppress(smtplib.SMTPException, OSError):
                self._server.quit()
            self._server = None

    def _connected(self) -> smtplib.SMTP:
        tls = ssl.create_default_context()
        direct = partial(smtplib.SMTP_SSL, context=tls) if self._scheme == "smtps" else smtplib.SMTP
        server = direct(self._host, self._port, timeout=_WITHIN)
        try:
            if self._scheme == "smtp+starttls":
                server.starttls(context=tls)
            if self._user:
                server.login(self._user, self._password)
        except BaseException:
            server.close()
            raise
        return server

    def _message(self, action: Action) -> EmailMessage:
        fields = {name: getattr(action, name) for name in _OF_ALL} | dict(action.row)
        message = EmailMessage()
        message["From"], message["To"] = self._target.sender, ", ".join(self._target.to)
        # a line of a header ends with it
        message["Subject"] = " ".join(_filled_in(self._target.subject, fields).split())
        message["Date"] = formatdate()
        message["Message-ID"] = f"<{action.id}@{self._target.sender.rpartition('@')[2]}>"
        message.set_content(_filled_in(self._target.text, fields))
        return message

    def _reset(self) -> None:
        try:
            if self._server:
                self._server.rset()
        except (smtplib.SMTPException, OSError):
            self.close()

    def _away(self, err: Exception) -> SinkAway:
        return SinkAway(
            f"target={self._target.name}, server={self._host}:{self._port}: it does not answer ({err!r})"
        )


def _place(text: str) -> tuple[str, int | None]:
    """Returns host and port of an address without user and password. Raises ValueError."""
    parts = urlsplit(f"//{text}")
    if "@" in text:
        raise ValueError("user and password stand before it in the declaration")
    if not parts.hostname or parts.netloc != text:
        raise ValueError("it has no host, or more than host and port")
    return parts.hostname, parts.port


def _answer(codes: set[int], text: str) -> Answer:
    return Answer("refused" if all(code >= 500 for code in codes) else "failed", text)


def _columns(template: str) -> set[str]:
    """Returns the first part of each name in braces, such as `window` of `{window[start]}`."""
    names = (name for _, name, _, _ in Formatter().parse(template) if name is not None)
    return {name.split("[")[0].split(".")[0] for name in names}


def _filled_in(template: str, row: Row | Mapping[str, Any]) -> str:
    return template.format_map(
        {name: "" if value is None else value for name, value in row.items()}
    )
