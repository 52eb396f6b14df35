"""Refusals of a broker to Spark's own clients, as errors of `kafka_client`.

Spark reads long ranges of topics by Kafka's Java client, whose exceptions reach Python as the text of a failed job.
"""

import re
import traceback
from collections.abc import Sequence

from lakehouse.errors import AccessError
from lakehouse.runtime import kafka_client
from lakehouse.settings import Settings

_RAISED = re.compile(r"org\.apache\.kafka\.common\.errors\.(\w+)Exception(?:: ([^\n]*))?")
_KINDS = {  # the reasons to turn a client away, by Java's names
    "SaslAuthentication": kafka_client.PASSWORD,
    "UnsupportedSaslMechanism": kafka_client.MECHANISM,
    "SslAuthentication": kafka_client.TLS,
}
# in the same text, for a certificate of the broker that the client does not trust
_UNTRUSTED = re.compile(r"(PKIX path [^\n]*|No subject alternative [^\n]*|No name matching [^\n]*)")
_LOST = re.compile(  # texts of Spark and Kafka's client for messages, or a topic, that are gone
    r"kafka\.common\.errors\.UnknownTopicOrPartitionException|OffsetOutOfRangeException"
    r"|KAFKA_DATA_LOSS|PARTITIONS_WITHOUT_OFFSETS|kafka010\.KafkaIllegalStateException"
)


def refusal(settings: Settings, topics: Sequence[str], err: BaseException) -> AccessError | None:
    """Returns the error of a job that the broker turned away, or did not let read these topics; None for another failure."""
    text = _text(err)
    for name, reason in _RAISED.findall(text):
        if name == "TopicAuthorization":
            what = f"topic={', '.join(topics)}, reading it by Spark"
            return kafka_client.not_allowed(what, reason, "READ and DESCRIBE on the topic")
        if name in _KINDS:
            untrusted = _UNTRUSTED.search(text)
            kind = kafka_client.CERTIFICATE if untrusted else _KINDS[name]
            why = untrusted[1] if untrusted else reason
            return kafka_client.refused(settings, kind, f"Spark's client: {why}")
    return None


def is_loss(err: BaseException) -> bool:
    """Returns True if a job failed because a topic, or messages of it, were not there."""
    return bool(_LOST.search(_text(err)))


def _text(err: BaseException) -> str:
    """Returns the text of an exception in the JVM with its causes, which Spark leaves out for some errors."""
    # an error of a JVM that is gone cannot be asked for its text
    raised = "".join(traceback.format_exception_only(err))
    return f"{raised}\n{getattr(err, '_stackTrace', '')}"
