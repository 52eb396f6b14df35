"""Expectations as values: the rules that a table's rows must keep.

`transform.checks.quality` turns them into Great Expectations' own. Editors and type checkers read
`expectations.pyi`, which has each by name.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lakehouse.declare import expectation_names


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation of Great Expectations by name and arguments, resolved when it is used."""

    type: str
    arguments: tuple[tuple[str, object], ...] = ()

    @property
    def kwargs(self) -> dict[str, object]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.arguments}

    def __str__(self) -> str:
        return f"{self.type}({', '.join(f'{k}={v!r}' for k, v in self.arguments)})"


class _Expect:
    """`expect.column_values_to_not_be_null("ad_id")`: every expectation of Great Expectations, without importing it."""

    def __getattr__(self, name: str) -> Callable[..., Expectation]:
        if name.startswith("_"):
            raise AttributeError(name)

        def expectation(*args: object, **kwargs: object) -> Expectation:
            arguments = expectation_names.arguments(f"expect_{name}", args, kwargs)
            return Expectation(f"expect_{name}", tuple(sorted(arguments.items())))

        return expectation

    def __dir__(self) -> list[str]:
        return [name.removeprefix("expect_") for name in expectation_names.signatures()]


expect = _Expect()
