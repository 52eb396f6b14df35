"""Lookups: questions to a service outside, asked once for each row, with recorded answers."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from lakehouse.declare import columns
from lakehouse.declare.inputs.source_checks import one_of
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError

OnFailure = Literal["wait", "quarantine", "null"]
# the rows that a batch run asks for: those without a recorded answer, also those whose lookup
# had failed, or all
Ask = Literal["missing", "failed", "all"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question to a service, declared once; made by `@lookup`.

    Call it to run its function.
    """

    name: str  # of the function, and of the column with the answer
    function: Callable[..., object] = field(repr=False)
    keys: tuple[str, ...]  # the columns that the function is called with
    schema: str
    concurrency: int
    timeout: timedelta
    retries: int
    cache_for: timedelta
    on_failure: OnFailure

    def __call__(self, *key: object) -> object:
        return self.function(*key)

    @property
    def meaning(self) -> tuple[str, tuple[str, ...], str, str]:
        """The options that decide rows once their answers are recorded."""
        return self.name, self.keys, self.schema, self.on_failure


def lookup(
    *,
    schema: str,
    concurrency: int = 10,
    timeout: str | timedelta = "10 seconds",
    retries: int = 3,
    cache_for: str | timedelta = "0 seconds",
    on_failure: OnFailure = "wait",
) -> Callable[[Callable[..., object]], Lookup]:
    """Declares a question to a service or database outside; its parameters name the columns that it needs.

        @lookup(schema="country STRING, city STRING", concurrency=20, timeout="2 seconds")
        async def place(ip_address: str):
            answer = await client().get(f"https://places.example/{ip_address}")
            return answer.json() if answer.status_code == 200 else None

        @row_table(layer="silver", lookup=place)
        def located_visits(visits: DataFrame) -> DataFrame:
            return visits.withColumn("country", F.col("place.country")).drop("place")

    A row table that names the lookup gets its answer as a column of the lookup's name, a struct of
    `schema`. Each answer is recorded before a row is computed with it, so batch runs and
    reconciliations use the recorded answer and do not ask. `lakehouse backfill --ask-again` renews
    answers. Within a step, equal keys are asked once. A key with a null is not asked; its answer is null.

    The function returns a mapping of columns to values, or None for "there is none". It fails by
    raising. An async function runs on one event loop of the process. A plain one runs in a thread,
    which a time-out leaves behind, so give its client a time-out as well.

    :param schema: Spark DDL, the columns of an answer.
    :param concurrency: how many questions are open at once.
    :param timeout: for one attempt.
    :param retries: further attempts after the first has failed, after a pause that doubles from a tenth
        of a second to ten seconds.
    :param cache_for: how long, by the clock, an answer is used for other rows with the same key; by
        default it is not. A restart forgets it.
    :param on_failure: what happens when all attempts for a row have failed. "wait" holds the table back and
        asks again until there is an answer, "quarantine" puts the row into the quarantine with the reason,
        "null" computes it with a null. The last two record the failure.
    :raises DeclarationError: for impossible values.
    """
    one_of("on_failure", on_failure, get_args(OnFailure))
    if concurrency < 1 or retries < 0:
        raise DeclarationError(
            f"concurrency={concurrency}, retries={retries}: at least 1 and at least 0; correct the number"
        )
    if not duration(timeout, "timeout"):
        raise DeclarationError(f"timeout={timeout}: it must be longer than 0; raise it")

    def declare(function: Callable[..., object]) -> Lookup:
        name = getattr(function, "__name__", "")
        keys = tuple(inspect.signature(function).parameters)
        if not name.isidentifier() or name.startswith("_") or not keys or columns.reserved(keys):
            raise DeclarationError(
                f"lookup={name or function!r}, parameters={list(keys)}: it and its parameters, at least one, name columns; rename"
            )
        return Lookup(
            name=name,
            function=function,
            keys=keys,
            schema=schema,
            concurrency=concurrency,
            timeout=duration(timeout, "timeout"),
            retries=retries,
            cache_for=duration(cache_for, "cache_for"),
            on_failure=on_failure,
        )

    return declare
