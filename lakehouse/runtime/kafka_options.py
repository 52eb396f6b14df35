"""The Kafka properties of the settings in the two dialects in use: librdkafka's, as they are given, and Java's."""

import re
from dataclasses import replace
from pathlib import Path

from lakehouse.errors import SettingsError
from lakehouse.runtime.kafka_address import bootstrap_servers
from lakehouse.runtime.kafka_properties import LARGEST_RECORD
from lakehouse.settings import Settings

# Spark reads a topic with a third less CPU when a poll brings more; the broker's own share drops to
# a sixth.
_LARGE_FETCHES = {
    "fetch.max.bytes": str(64 << 20),
    "max.partition.fetch.bytes": str(16 << 20),
    "max.poll.records": "10000",
}
_NO_TELEMETRY = {"enable.metrics.push": "false"}
# a producer's limit; the broker has the last word
_LARGE_RECORDS = {"message.max.bytes": str(LARGEST_RECORD)}
_RENAMED = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
_FILES = {
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
Properties = dict[str, str | int | float | bool]  # as confluent-kafka takes them
_JAVA_ONLY = (
    "sasl.jaas.config",
    "ssl.truststore.",
    "ssl.keystore.type",
    "ssl.keystore.key",
    "ssl.keystore.cert",
)
_LOGIN = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_LOGIN}.plain.PlainLoginModule",
    "SCRAM": f"{_LOGIN}.scram.ScramLoginModule",
}


def isolated(settings: Settings, isolation: str) -> Settings:
    """Returns the settings with the isolation that a source declares, if it declares one."""
    if not isolation:
        return settings
    return replace(settings, kafka={**settings.kafka, "isolation.level": isolation})


def client_config(settings: Settings) -> Properties:
    """Returns the properties of a confluent-kafka client. They may hold secrets: never log them."""
    given = {name: text for name, text in settings.kafka.items() if not name.startswith(_JAVA_ONLY)}
    servers = {"bootstrap.servers": bootstrap_servers(settings)}
    return {**_NO_TELEMETRY, **_LARGE_RECORDS, **given, **servers}


def spark_options(settings: Settings) -> dict[str, str]:
    """Returns the options of Spark's Kafka source and sink, with the prefix `kafka.`. They may hold secrets: never log them."""
    properties = _LARGE_FETCHES | _NO_TELEMETRY | _java(settings)
    properties["bootstrap.servers"] = bootstrap_servers(settings)
    return {f"kafka.{name}": value for name, value in properties.items()}


def _java(settings: Settings) -> dict[str, str]:
    given = dict(settings.kafka)
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    java = {_RENAMED.get(name, name): value for name, value in given.items() if name not in _FILES}
    java |= {_FILES[name]: _pem(name, path) for name, path in given.items() if name in _FILES}
    if user is not None:
        java.setdefault(
            "sasl.jaas.config", _jaas(java.get("sasl.mechanism", ""), user, password or "")
        )
    if {"ssl.ca.location", "ssl.ca.pem"} & given.keys():
        java["ssl.truststore.type"] = "PEM"
    if {"ssl.keystore.certificate.chain", "ssl.keystore.key"} & java.keys():
        java["ssl.keystore.type"] = "PEM"
    if java.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""  # Java's spelling
    return java


def _jaas(mechanism: str, user: str, password: str) -> str:
    module = _LOGIN_MODULES.get(mechanism.upper().partition("-")[0])
    if module is None:
        raise SettingsError(
            f"kafka.sasl.mechanism={mechanism!r}: a user name and password go with PLAIN, SCRAM-SHA-256 or"
            " SCRAM-SHA-512; set LAKEHOUSE_KAFKA_SASL_MECHANISM, or a sasl.jaas.config of your own"
        )
    return f"{module} required username={_quoted(user)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pem(name: str, path: str) -> str:
    """Returns the text of a PEM file: Java takes certificate and key in one file or as text, librdkafka as two files."""
    try:
        text = Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as err:
        raise SettingsError(
            f"kafka.{name}={path}: a readable PEM file; {type(err).__name__}"
        ) from err
    if name == "ssl.key.location" and not re.search("BEGIN (ENCRYPTED )?PRIVATE KEY", text):
        raise SettingsError(
            f"kafka.{name}={path}: Java reads a PKCS#8 key only; convert it by `openssl pkcs8 -topk8`"
        )
    return text
