"""A broker that answers, is away, or turns this client away.

A broker that is away comes back by itself, and is waited for. A wrong password stays wrong until somebody mends it.
librdkafka tries again in both cases, and every request times out in both. Its reports and logs differ, so they are
listened to here.
"""

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import wait
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakehouse.errors import AccessError, BrokerError, SettingsError
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

WITHIN = 30.0  # seconds for an answer of the broker
_SOON = 2.0  # seconds to be turned away, of a broker that did not answer just now
_LISTEN = 0.05
_SHOWN = (  # of the properties: those without secrets
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
)
# texts of librdkafka for a client that the broker turned away
MECHANISM, PASSWORD = "mechanism handshake failed", "SASL authentication error"
CERTIFICATE, TLS = "certificate verify failed", "SSL routines"
# the rule, and the fix
_TURNED_AWAY = {
    MECHANISM: (
        "the broker must offer the mechanism",
        "set LAKEHOUSE_KAFKA_SASL_MECHANISM to one that it offers",
    ),
    PASSWORD: (
        "the broker must know the user by this password",
        "correct LAKEHOUSE_KAFKA_SASL_USERNAME and LAKEHOUSE_KAFKA_SASL_PASSWORD, or the user at the broker",
    ),
    CERTIFICATE: (
        "an authority that the client trusts must have signed the broker's certificate, for the name in its address",
        "correct LAKEHOUSE_KAFKA_SSL_CA_LOCATION, or the certificate",
    ),
    TLS: (
        "client and broker must agree on TLS, and on the client's certificate if the broker asks for one",
        "correct the settings LAKEHOUSE_KAFKA_SSL_...",
    ),
}
# in the same texts, that nobody answered
_AWAY = ("Local: ", "Disconnected", "onnection reset", "onnection closed", "unexpected eof")
_DENIED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)


def admin(settings: Settings) -> "AdminClient":
    """Returns a client that has asked no broker yet. Raises SettingsError, BrokerError."""
    return _client(settings, {})


def consumer(
    settings: Settings, group: str, own: Mapping[str, object] = MappingProxyType({})
) -> "Consumer":
    """Returns a consumer that commits no offsets and sees the end of a partition. `own`: its further properties."""
    from confluent_kafka import Consumer

    fixed = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "log_level": "0",  # what matters is raised
    }
    # as Spark reads topics, unless the user wants otherwise
    config = {"isolation.level": "read_uncommitted", **client_config(settings)} | fixed
    return Consumer(config | dict(own))


def check(settings: Settings, within: float = WITHIN) -> None:
    """Returns once the broker answers.

    Raises AccessError as soon as it turns this client away, BrokerError if it does not answer within so many seconds,
    SettingsError for properties that no client takes.
    """
    _answered(settings, within)


def check_access(settings: Settings) -> None:
    """Raises AccessError if the broker, which did not answer just now, turns this client away."""
    with suppress(BrokerError):
        check(settings, _SOON)


def topics(settings: Settings, within: float = WITHIN) -> frozenset[str]:
    """Returns the topics that the broker shows to this client. Raises as `check`."""
    from confluent_kafka import KafkaException

    client = _answered(settings, within)
    try:
        return frozenset(client.list_topics(timeout=within).topics)
    except KafkaException as err:
        raise _silent(settings, within, err.args[0].str()) from err


def denied(error: "KafkaError", what: str, right: str) -> AccessError | None:
    """Returns the error of a client whose user lacks a right; None if the broker answered otherwise.

    :param what: the request: `topic=orders, reading it`.
    :param right: the right that it takes: `READ on the topic`.
    """
    return not_allowed(what, error.str(), right) if error.name() in _DENIED else None


def not_allowed(what: str, reason: str, right: str) -> AccessError:
    return AccessError(
        f"{what}: the broker does not allow it ({reason}); the user must have {right}; grant it at the broker"
    )


def is_of_group(error: "KafkaError") -> bool:
    """Returns True for an error of a consumer's group, which needs none here.

    librdkafka looks for the group's coordinator all the same, which a user may have no right to.
    """
    return error.name() == "GROUP_AUTHORIZATION_FAILED"


def turned_away(reports: Collection[str]) -> str:
    """Returns the first of these reports by which a broker turned its client away; empty if there is none."""
    for report in reports:
        if any(t in report for t in _TURNED_AWAY) and not any(t in report for t in _AWAY):
            return report
    return ""


class _Listener(logging.Handler):
    """Keeps the logged texts, without their loggers."""

    def __init__(self, reports: list[str]) -> None:
        super().__init__()
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        self._reports.append(record.getMessage().rpartition("]: ")[2])


def _answered(settings: Settings, within: float) -> "AdminClient":
    """Returns a client whose broker has answered it."""
    from confluent_kafka import KafkaException

    reports: list[str] = []
    logger = logging.Logger("kafka")  # nobody else's; some hints are in the log only
    logger.addHandler(_Listener(reports))
    callbacks = {"error_cb": lambda error: reports.append(error.str()), "logger": logger}
    client = _client(settings, callbacks | {"log_level": "6"})
    future = client.describe_cluster(request_timeout=within)
    deadline = time.monotonic() + within
    while not future.done() and time.monotonic() < deadline:
        wait([future], _LISTEN)
        client.poll(0)
        if why := turned_away(reports):
            raise _refused(settings, why)
    try:
        future.result(timeout=_SOON)
    except (KafkaException, TimeoutError) as err:
        client.poll(0)
        if why := turned_away(reports):
            raise _refused(settings, why) from err
        causes = [text for text in reports if "brokers are down" not in text]  # which says no more
        reason = causes[-1] if causes else str(err) or "no answer"
        raise _silent(settings, within, reason) from err
    return client


def _client(settings: Settings, own: dict[str, Any]) -> "AdminClient":
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        return AdminClient({**client_config(settings), "log_level": "0", **own})
    except KafkaException as err:
        raise SettingsError(
            f"{_shown(settings)}: Kafka's client takes no such properties ({err.args[0].str()}); correct "
            "LAKEHOUSE_KAFKA_..., or [kafka] in lakehouse.toml"
        ) from err


def _refused(settings: Settings, why: str) -> AccessError:
    return refused(settings, next(name for name in _TURNED_AWAY if name in why), why)


def refused(settings: Settings, kind: str, why: str) -> AccessError:
    """Returns the error of a client that the broker turns away, for one of the kinds above."""
    rule, fix = _TURNED_AWAY[kind]
    return AccessError(
        f"{_shown(settings)}: the broker turns this client away; {rule}; {fix} ({why})"
    )


def _silent(settings: Settings, within: float, reason: str) -> BrokerError:
    check = "check the address, and that the broker runs"
    if "Disconnected" in reason:  # by a broker that ends, or whose listener speaks another protocol
        protocol = settings.kafka.get("security.protocol", "PLAINTEXT")
        check += f" and its listener speaks security.protocol={protocol} (LAKEHOUSE_KAFKA_SECURITY_PROTOCOL)"
    return BrokerError(
        f"bootstrap.servers={client_config(settings)['bootstrap.servers']}: it must answer within {within:g} s and did not "
        f"({reason}); {check}"
    )


def _shown(settings: Settings) -> str:
    """Returns the address, and the other properties without secrets."""
    config = client_config(settings)
    names = ("bootstrap.servers", *(name for name in _SHOWN if name in config))
    return ", ".join(f"{name}={config[name]}" for name in names)
