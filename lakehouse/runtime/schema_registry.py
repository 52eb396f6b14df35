"""The schema registry over HTTP, with Confluent's interface, which other registries have as well."""

import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from lakehouse.declare.inputs.sources import OF_REGISTRY
from lakehouse.errors import RegistryAway, SettingsError, SinkError
from lakehouse.runtime.http_client import Client, Unanswered
from lakehouse.settings import Settings
from lakehouse.storage.position.schemas import Schema

_ANSWER = 10.0  # seconds for the registry to answer
_LARGEST = (1 << 31) - 1  # of an id; asked for another a registry answers that it cannot read it
_REFUSED = (409, 422)  # of a schema: it is not compatible, or none
_SAID = 500  # bytes of a refusal that are repeated
_NONE = (40401, 40402, 40403)  # error codes: no such subject, version, schema
_SCHEMA, _NEWEST = {"schema": str}, {"schema": str, "id": int}  # what an answer has, at least
_REFERENCE = {"name": str, "subject": str, "version": int}
_ERROR = {"error_code": int}


class _Refused(Exception):
    """The registry refuses a schema."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The registry that the settings name."""

    url: str
    properties: Mapping[str, str]

    def schema(self, number: int) -> Schema | None:
        """Returns the schema of that id; None if the registry has none. Raises RegistryAway."""
        if number > _LARGEST:
            return None
        path = f"/schemas/ids/{number}"
        answer = self._ask(path, _SCHEMA)
        if answer and answer.get("references") and _type(answer) != "PROTOBUF":
            # put in the place of their names
            answer = self._ask(f"{path}?format=resolved", _SCHEMA) or answer
        return self._whole(number, answer) if answer else None

    def newest(self, subject: str) -> Schema | None:
        """Returns the newest schema of a subject; None if the registry has no such subject. Raises RegistryAway."""
        answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", _NEWEST)
        return self._whole(answer["id"], answer) if answer else None

    def _whole(self, number: int, answer: Mapping[str, Any]) -> Schema | None:
        """Returns a schema, of Protobuf with its imports; None if the registry does not know one of these."""
        imports: dict[str, str] = {}
        waiting = list(_imported(answer))
        while waiting:
            reference = waiting.pop()
            if reference["name"] not in imports:
                subject, version = quote(reference["subject"], safe=""), reference["version"]
                imported = self._ask(f"/subjects/{subject}/versions/{version}", _SCHEMA)
                if imported is None:
                    return None
                imports[reference["name"]] = imported["schema"]
                waiting += _imported(imported)
        return Schema(number, _type(answer), answer["schema"], tuple(sorted(imports.items())))

    def register(self, subject: str, text: str, type: str) -> int:
        """Returns the id of a schema, which becomes the newest of the subject unless the subject has it already.

        :param type: as the registry names it: AVRO, PROTOBUF.
        :raises SinkError: if the registry refuses it, as one that is not compatible with those before.
        :raises RegistryAway: if it does not answer.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        try:
            answer = self._ask(path, {"id": int}, {"schema": text, "schemaType": type})
        except _Refused as err:
            raise SinkError(
                f"subject={subject}, registry={self.url}: it refuses the schema of the columns that are there now ({err}); set "
                "another compatibility for the subject, or publish to another topic"
            ) from err
        if answer is None:
            raise self._away(path, "it has no such path")
        return answer["id"]

    def _ask(
        self, path: str, expected: Mapping[str, type], body: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Returns the registry's answer, which has the fields `expected`; None if it has no such thing."""
        url, headers = self.url.rstrip("/") + path, self._headers()
        sent = json.dumps(body).encode() if body else None
        if sent:
            headers["Content-Type"] = "application/vnd.schemaregistry.v1+json"
        client, method = Client(self._tls()), "POST" if sent else "GET"
        try:
            with client.ask(method, url, sent, headers, within=_ANSWER) as answer:
                content = answer.read()
        except (Unanswered, ValueError) as err:
            raise self._away(path, str(err)) from err
        if body is not None and answer.status in _REFUSED:
            raise _Refused(content[:_SAID].decode(errors="replace"))
        document = _decoded(content)
        if answer.status == 404 and _has(document, _ERROR) and document["error_code"] in _NONE:
            return None
        if not 200 <= answer.status < 300:
            why = f"HTTP {answer.status} {answer.reason}"
            if 300 <= answer.status < 400:  # a password goes to the registry alone
                why += f"; it names the address {answer.headers.get('Location', '')!r}, which is not followed"
            raise self._away(path, why)
        if _has(document, expected) and all(
            _has(reference, _REFERENCE) for reference in _imported(document)
        ):
            return document
        raise RegistryAway(
            f"registry={self.url}, {path}: a schema registry answers with a JSON object that has "
            f"{', '.join(map(repr, expected))}, and this was answered: {content[:_SAID].decode(errors='replace')!r}; correct the "
            "settings of `registry` if something else listens at that address"
        )

    def _headers(self) -> dict[str, str]:
        if user := self.properties.get("basic.auth.user.info"):
            return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
        token = self.properties.get("bearer.auth.token")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _tls(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.properties.get("ssl.ca.location"))
            if certificate := self.properties.get("ssl.certificate.location"):
                context.load_cert_chain(certificate, self.properties.get("ssl.key.location"))
        except OSError as err:
            raise SettingsError(
                f"registry.ssl: certificates and key are readable PEM files, and one is not ({err}); correct its location"
            ) from err
        return context

    def _away(self, path: str, why: str) -> RegistryAway:
        return RegistryAway(
            f"registry={self.url}, {path}: the schema registry must answer within {_ANSWER:.0f} s and did not ({why}); start it, "
            "or correct the settings of `registry`"
        )


def registry(settings: Settings) -> Registry:
    """Returns the registry of the settings. Raises SettingsError if they name none."""
    url = settings.registry.get("url", "")
    if url.startswith(("http://", "https://")) and "@" not in url:
        return Registry(url, settings.registry)
    if url:
        raise SettingsError(
            "registry.url: an address http://host:port or https://host:port, without a user; a user and password go to "
            "LAKEHOUSE_REGISTRY_BASIC_AUTH_USER_INFO=user:password"
        )
    raise SettingsError(
        f"registry.url='': a topic is declared with format={' or '.join(map(repr, OF_REGISTRY))}, and the schemas of its values "
        "are in a registry; set LAKEHOUSE_REGISTRY_URL, for example to http://127.0.0.1:8081"
    )


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:  # a page of HTML, say: it has nothing that is expected
        return None


def _has(value: Any, expected: Mapping[str, type]) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kind) for name, kind in expected.items()
    )


def _imported(schema: Mapping[str, Any]) -> list[Any]:
    """Returns the references of a schema of Protobuf. One of Avro is asked for with its references in it."""
    references = schema.get("references") or []
    return references if _type(schema) == "PROTOBUF" and isinstance(references, list) else []


def _type(schema: Mapping[str, Any]) -> str:
    return schema.get("schemaType", "AVRO")  # of Avro it is left out
