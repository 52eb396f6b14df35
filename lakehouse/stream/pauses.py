"""The time for which a stream may rest: its sources keep unread records for a while, and no longer."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from lakehouse.runtime import kafka_client
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse

_WITHIN = 5.0  # seconds for an answer of the broker, while a command waits


def remarks(lakehouse: Lakehouse, pipeline: str, now: datetime) -> list[str]:
    """Returns a line for each source of a pipeline that rests from `now` on: for how long it keeps what comes meanwhile."""
    tables = lakehouse.catalog.of_pipeline(pipeline)
    sources = {
        source
        for each in tables
        for source in lakehouse.catalog.sources_of(each).values()
        if not source.is_history  # which gets no new records
    }
    said = {source.address: source.while_resting for source in sources}
    topics = [address for address, text in said.items() if not text]
    for topic, configuration in _configurations(lakehouse.settings, topics).items():
        said[topic] = remark(configuration, now)
    return [f"{name}: {text}" for name, text in sorted(said.items())]


def remark(known: Mapping[str, str] | str, now: datetime) -> str:
    """Returns the line of a topic, by its configuration, or by the reason why that is not known."""
    if isinstance(known, str):
        return f"it is not known for how long it keeps what is not read, because its broker does not say ({known})"
    policy = known["cleanup.policy"].split(",")
    if "delete" not in policy:
        return "it keeps the newest message of each key, and earlier ones may go while nothing reads them"
    said, kept = [], int(known["retention.ms"])
    if kept >= 0:
        until = now + timedelta(milliseconds=kept)
        said.append(
            f"it keeps messages that come from now on until {until.isoformat(' ', 'minutes')}, and earlier ones less long"
        )
    if (size := int(known["retention.bytes"])) >= 0:
        said.append(f"it keeps {size:,} bytes of each partition")
    if "compact" in policy:
        said.append("it keeps the newest message of each key alone")
    return f"{'; '.join(said)}: start the job before" if said else "it keeps all messages"


def _configurations(
    settings: Settings, topics: Iterable[str]
) -> dict[str, Mapping[str, str] | str]:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource

    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    configurations: dict[str, Mapping[str, str] | str] = {}
    if not resources:
        return configurations
    client = kafka_client.admin(settings)  # unnamed, it would end before its answers come
    for resource, future in client.describe_configs(resources, request_timeout=_WITHIN).items():
        try:
            entries = future.result()
            configurations[resource.name] = {
                name: str(entry.value) for name, entry in entries.items()
            }
        except KafkaException as err:
            configurations[resource.name] = err.args[0].str()
    return configurations
