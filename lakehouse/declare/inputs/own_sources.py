"""A source of your own: records that a Python class reads (`declare.inputs.readers`)."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, Unpack

from lakehouse.declare.inputs.readers import SourceReader
from lakehouse.declare.inputs.source_checks import check_records, null_texts, one_of
from lakehouse.declare.inputs.sources import (
    EMPTY,
    About,
    RecordOptions,
    RecordSource,
    record_options,
)
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError

Option = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class PythonSource(RecordSource):
    """A source of one's own; its records are those that a class reads."""

    reader: type[SourceReader] = field(kw_only=True)
    options: tuple[tuple[str, str | int | float | bool | None], ...] = ()
    poll_interval: timedelta = timedelta(seconds=1)

    @property
    def class_name(self) -> str:
        return f"{self.reader.__module__}.{self.reader.__qualname__}"

    job_kind = "python"
    while_resting = "what comes meanwhile is read if it is still there: start the job before the source lets go of it"

    @property
    def reader_note(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"{self.class_name}({options})"

    @property
    def label(self) -> str:
        return f"source {self.address}, read by {self.class_name}"

    @property
    def about(self) -> About:
        shown = (
            f"The source `{self.address}`: records ({self.format}) that `{self.class_name}` reads."
        )
        return About(shown, "python", {"class": self.class_name})

    def dataset(self, broker: Callable[[], str]) -> tuple[str, str]:
        return f"python://{self.class_name}", self.address


def python_source(
    name: str,
    reader: type[SourceReader],
    *,
    schema: str,
    options: Mapping[str, Option] | None = None,
    format: Literal["json", "csv", "text"] = "json",
    nulls: Sequence[str] = EMPTY,
    poll_interval: str | timedelta = "1 second",
    **records: Unpack[RecordOptions],
) -> PythonSource:
    """Declares a source of your own as the input of an ingest table: records that a Python class reads, each once.

        rates = python_source("exchange-rates", Rates, schema="pair STRING NOT NULL, at TIMESTAMP NOT NULL, rate DOUBLE",
                              options={"url": "https://rates.example"})

    The class is a `SourceReader`. Only a stream, a test or `lakehouse validate` makes an instance.

    :param name: of the source, in `_arrival` and messages. Under another name it is another source.
    :param reader: the class.
    :param schema: Spark DDL; a NOT NULL column is required.
    :param options: arguments of the class by name: texts and numbers. They are shown and stored, so let the class read
        passwords from the environment.
    :param format: "json", objects of the schema; "csv", lines with the columns in their order; "text", text as it is, the one
        STRING column.
    :param nulls: the fields of CSV that are null, with quotes or without. By default the empty one.
    :param poll_interval: how often it is asked for more, once all is read.
    :param records: see `RecordOptions`.
    :raises DeclarationError: for an impossible class, options or schema.
    """
    one_of("format", format, ("json", "csv", "text"))
    given = dict(options or {})
    _check_reader(name, reader, given)
    source = PythonSource(
        name,
        schema,
        format,
        **record_options("python_source", records),
        nulls=null_texts(nulls),
        reader=reader,
        options=tuple(sorted(given.items())),
        poll_interval=duration(poll_interval, "poll_interval"),
    )
    check_records(source)
    return source


def _check_reader(name: str, reader: type[SourceReader], options: Mapping[str, Option]) -> None:
    """Raises DeclarationError for a class that cannot be instantiated with these options, or cannot be called."""
    if not name.strip():
        raise DeclarationError(f"name={name!r}: a source is known by its name; give it one")
    if not (isinstance(reader, type) and issubclass(reader, SourceReader)):
        raise DeclarationError(
            f"source={name}, reader={reader!r}: it must be a class that extends lakehouse.SourceReader, and no instance; "
            "each stream makes its own"
        )
    where = f"source={name}, reader={reader.__name__}"
    if lacking := sorted(reader.__abstractmethods__):
        raise DeclarationError(f"{where}: it has no method {', '.join(lacking)}; write it")
    for option, value in options.items():
        if not isinstance(value, Option):
            raise DeclarationError(
                f"{where}, option {option}={value!r}: texts, numbers, true, false and None can be shown and compared; let the "
                "class make the rest of them"
            )
    try:
        inspect.signature(reader).bind(**options)
    except TypeError as err:
        raise DeclarationError(
            f"{where}, options={options}: it cannot be made with them ({err}); options are the parameters of its __init__"
        ) from err
    try:
        inspect.signature(reader.read).bind(None, 0, 0, 0)
    except TypeError as err:
        raise DeclarationError(
            f"{where}: its method read is called with partition, start and end ({err}); give it these parameters"
        ) from err
