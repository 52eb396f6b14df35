"""Bad input, kind by kind, made from good records; and records sent twice."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import cycle
from typing import NamedTuple

from lakehouse.errors import SettingsError
from lakehouse.producers.workload import DUPLICATE, MALFORMED, ORDINARY, Record

KINDS = (
    "not_json",  # cut off in the middle (a log line, too)
    "wrong_type",  # true where the event time should be
    "missing_field",  # no event time
    "null_key",  # the field that names the sensor, the ad or the visitor is null
    "year_9999",
    "hour_ahead",  # of the record's own timestamp: a clock in the wrong zone
    "year_1970",  # a clock that was never set
    "tombstone",  # no value at all
    "invalid_utf8",  # in the field that names the sensor, the ad or the visitor; otherwise good
)
OVERSIZED = "oversized"  # good but for 5 MB of padding in an unknown field; sent only where a test asks for it


class Form(NamedTuple):
    """The form of values: their key field, their event times, the value itself (JSON by default) and its field of event time."""

    key: str
    stamp: Callable[[int], str]  # of ms
    read: Callable[[bytes], dict[str, object]] = json.loads
    write: Callable[[dict[str, object]], str] = partial(json.dumps, ensure_ascii=False)
    time: str = "event_time"


def spoiled(record: Record, kind: str, form: Form) -> Record:
    """Returns the good `record`, of that form, broken in the way that `kind` names."""
    value = record.value or b""
    event = form.read(value)
    match kind:
        case "not_json":
            return _bad(record, value[: len(value) // 2])
        case "tombstone":
            return _bad(record, None)
        case "wrong_type":
            event[form.time] = True
        case "missing_field":
            del event[form.time]
        case "null_key":
            event[form.key] = None
            record = record._replace(key=None)
        case "year_9999":
            event[form.time] = form.stamp(253_402_300_799_999)
        case "hour_ahead":
            event[form.time] = form.stamp(record.time_ms + 3_600_000)
        case "year_1970":
            event[form.time] = form.stamp(0)
        case "invalid_utf8":
            event[form.key] = "\udcc3("  # the bytes c3 28: a character cut short
        case "oversized":
            event["padding"] = "x" * 5_000_000
        case _:
            raise SettingsError(
                f"kind={kind!r}: bad input is one of {', '.join(KINDS)}, {OVERSIZED}; name one of them"
            )
    return _bad(record, form.write(event).encode(errors="surrogateescape"))


def with_faults(records: Iterator[Record], form: Form | Mapping[str, Form]) -> Iterator[Record]:
    """Yields `records`, those marked MALFORMED spoiled, kind after kind, and those marked DUPLICATE twice; forms are by topic."""
    kinds = cycle(KINDS)
    for record in records:
        if record.kind == MALFORMED:
            of_topic = form if isinstance(form, Form) else form[record.topic]
            yield spoiled(record, next(kinds), of_topic)
            continue
        if record.kind == DUPLICATE:
            yield record._replace(kind=ORDINARY)
        yield record


def _bad(record: Record, value: bytes | None) -> Record:
    return record._replace(value=value, event_ms=None, kind=MALFORMED)
