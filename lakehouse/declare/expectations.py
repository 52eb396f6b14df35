"""Expectations as values: what must hold of a table's rows.

`transform.quality` turns them into Great Expectations' own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lakehouse.errors import DeclarationError


@dataclass(frozen=True, slots=True)
class Expectation:
    """A Great Expectations expectation by name and arguments; resolved only when it is used."""

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

        def expectation(*args: str, **kwargs: object) -> Expectation:
            names = ("column_A", "column_B") if "_pair_" in name else ("column",)
            if len(args) > len(names):
                raise DeclarationError(
                    f"expect.{name}{args!r}: only {', '.join(names)} may be positional; give the rest by name"
                )
            given = dict(zip(names, args, strict=False)) | kwargs
            frozen = {k: tuple(v) if isinstance(v, list | set) else v for k, v in given.items()}
            return Expectation(f"expect_{name}", tuple(sorted(frozen.items())))

        return expectation


expect = _Expect()
