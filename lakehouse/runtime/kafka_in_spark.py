"""What a broker refuses Spark's own clients, said as `kafka_client` says it of ours.

Long ranges of topics are read by Spark, whose driver and executors have Kafka's Java client. What that raises reaches Python as
the text of a failed job.
"""

import re
import traceback
from collections.abc import Sequence

from lakehouse.errors import AccessError
from lakehouse.runtime import kafka_client
from lakehouse.settings import Settings

_RAISED = re.compile(r"org\.apache\.kafka\.common\.errors\.(\w+)Exception(?:: ([^\n]*))?")
_KINDS = {  # of what turns a client away, by Java's names
    "SaslAuthentication": kafka_client.PASSWORD,
    "UnsupportedSaslMechanism": kafka_client.MECHANISM,
    "SslAuthentication": kafka_client.TLS,
}
# in the same text, that the broker's certificate is not one that the client trusts
_UNTRUSTED = re.compile(r"(PKIX path [^\n]*|No subject alternative [^\n]*|No name matching [^\n]*)")
_LOST = re.compile(  # what Spark and Kafka's client say of messages, or a topic, that are gone
    r"kafka\.common\.errors\.UnknownTopicOrPartitionException|OffsetOutOfRangeException"
    r"|KAFKA_DATA_LOSS|PARTITIONS_WITHOUT_OFFSETS|kafka010\.KafkaIllegalStateException"
)


def refusal(settings: Settings, topics: Sequence[str], err: BaseException) -> AccessError | None:
    """The error of a job that failed because the broker turned Spark away, or did not let it read these topics.

    None of a job that failed otherwise.
    """
    text = _text(err)
    for name, said in _RAISED.findall(text):
        if name == "TopicAuthorization":
            what = f"topic={', '.join(topics)}, reading it by Spark"
            return kafka_client.not_allowed(what, said, "READ and DESCRIBE on the topic")
        if name in _KINDS:
            untrusted = _UNTRUSTED.search(text)
            kind = kafka_client.CERTIFICATE if untrusted else _KINDS[name]
            why = untrusted[1] if untrusted else said
            return kafka_client.refused(settings, kind, f"Spark's client: {why}")
    return None


def is_loss(err: BaseException) -> bool:
    """Whether a job failed because a topic, or messages of it, were not there."""
    return bool(_LOST.search(_text(err)))


def _text(err: BaseException) -> str:
    """What was raised in the JVM, with its causes: of some errors Spark leaves these out of the text."""
    # also of a JVM that is gone, of which an error cannot be asked for its text
    said = "".join(traceback.format_exception_only(err))
    return f"{said}\n{getattr(err, '_stackTrace', '')}"
