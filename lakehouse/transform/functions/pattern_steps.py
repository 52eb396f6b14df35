"""The steps of a pattern: the rows that they take, how often, and what must not come."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, Literal

from lakehouse.errors import DeclarationError

Holds = Callable[..., Any]


@dataclass(frozen=True, eq=False, slots=True)
class Condition:
    """A condition on a row, and the steps whose rows it also takes, by the names of its parameters."""

    holds: Holds
    steps: tuple[str, ...]

    @classmethod
    def of(cls, holds: Holds) -> "Condition":
        """Returns the condition of a function: its first parameter is the row, others without a default are steps."""
        try:
            parameters = list(inspect.signature(holds).parameters.values())[1:]
        except ValueError:  # a function written in C has no signature
            parameters = []
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = (p.name for p in parameters if p.kind in kinds and p.default is p.empty)
        return cls(holds, tuple(names))


@dataclass(frozen=True, slots=True)
class Step:
    """A row that is to come, and how often; for `not_followed_by`, one that must not come."""

    kind: Literal["begin", "followed_by", "directly_followed_by", "not_followed_by"]
    name: str
    condition: Condition
    least: int = 1
    most: int | None = 1  # None: any number
    is_optional: bool = False
    is_greedy: bool = False
    is_consecutive: bool = False
    stop: Condition | None = None

    @property
    def repeats(self) -> bool:
        """True if its rows are passed as a tuple."""
        return self.most != 1

    def times(self, least: int, most: int | None = None) -> "Step":
        """Takes exactly `least` rows, or from `least` to `most` of them.

        :param least: at least 1; with `optional()`, none at all will do, too.
        :param most: `least` if not given.
        """
        return replace(self, least=least, most=least if most is None else most)

    def times_or_more(self, least: int) -> "Step":
        """Takes at least this many rows, and any number more."""
        return replace(self, least=least, most=None)

    def one_or_more(self) -> "Step":
        """Takes one row, and any number more."""
        return self.times_or_more(1)

    def optional(self) -> "Step":
        """Allows no row at all."""
        return replace(self, is_optional=True)

    def greedy(self) -> "Step":
        """Takes all rows that it may take: none is left to a later step, or passed over."""
        return replace(self, is_greedy=True)

    def consecutive(self) -> "Step":
        """Takes rows directly after each other: any other row of the key ends the repetition."""
        return replace(self, is_consecutive=True)

    def until(self, holds: Holds) -> "Step":
        """Ends the repetition at the first row for which `holds`; later steps may take that row."""
        return replace(self, stop=Condition.of(holds))


def begin(name: str, holds: Holds) -> Step:
    """Returns the first step of a pattern. Each row that it takes begins matches of its own.

    :param name: the name of its rows in `select` and later conditions.
    :param holds: the condition on a row. Further parameters are names of steps up to this one, for the rows that
        the match has of them so far: a tuple for a step that repeats, else the row, or None.
    """
    return Step("begin", name, Condition.of(holds))


def followed_by(name: str, holds: Holds) -> Step:
    """Returns a step for the next row for which it holds, whatever is between.

    The parameters are those of `begin`.
    """
    return Step("followed_by", name, Condition.of(holds))


def directly_followed_by(name: str, holds: Holds) -> Step:
    """Returns a step for the very next row of the key.

    If the condition does not hold for that row, the step does not come. The parameters are those of `begin`.
    """
    return Step("directly_followed_by", name, Condition.of(holds))


def not_followed_by(holds: Holds) -> Step:
    """Returns a step that forbids such a row before the next step or, as the last step, until the pattern's time is over.

    :param holds: as for `begin`, with the rows of the steps before.
    """
    return Step("not_followed_by", "", Condition.of(holds))


def check(steps: Sequence[Step]) -> None:
    """Raises DeclarationError for steps that make no pattern."""
    kinds = [step.kind for step in steps]
    if not kinds or kinds[0] != "begin" or "begin" in kinds[1:]:
        raise DeclarationError(f"pattern={kinds}: it begins with begin(...), once; add or move")
    if len(steps) == 1 and not steps[0].repeats:
        raise DeclarationError(
            f"pattern={kinds}: a single row is found by where(); add a step, or times(...)"
        )
    if any(
        before == "not_followed_by" and after != "followed_by" for before, after in pairwise(kinds)
    ):
        raise DeclarationError(
            f"pattern={kinds}: after not_followed_by(...) comes followed_by(...), or nothing; say both conditions in one"
        )
    before_a_not = takewhile(lambda step: step.kind != "not_followed_by", steps)
    if all(step.is_optional for step in before_a_not):
        raise DeclarationError(
            f"pattern={kinds}: a match could begin with no row, for all steps up to its end or to not_followed_by(...) are "
            "optional(); leave it out of one"
        )
    names: list[str] = []
    for step in steps:
        if step.name in names or (step.name and not step.name.isidentifier()):
            raise DeclarationError(
                f"step={step.name!r}: a name is one step's and a Python identifier, for select takes it as a parameter; rename it"
            )
        names += [step.name] if step.name else []
        _check_repetition(step)
        _check_conditions(step, names)


def _check_repetition(step: Step) -> None:
    what = f"step={step.name!r}"
    if step.kind == "not_followed_by":
        if step.repeats or step.is_optional or step.is_greedy or step.is_consecutive or step.stop:
            raise DeclarationError(
                "step=not_followed_by(...): no row of it is taken, so none repeats; leave out what follows it"
            )
        return
    if step.least < 1 or (step.most is not None and step.most < step.least):
        raise DeclarationError(
            f"{what}, times={step.least} to {step.most}: it is 1 or more, to no less; for none at all write optional()"
        )
    if not step.repeats and (step.is_consecutive or step.stop):
        raise DeclarationError(
            f"{what}: consecutive() and until(...) are for a step that repeats; add one_or_more() or times(...)"
        )
    if step.is_greedy and step.most == step.least and not step.is_optional:
        raise DeclarationError(
            f"{what}: greedy() is for a step with a choice, and this one takes exactly {step.least}; leave it out"
        )


def _check_conditions(step: Step, names: list[str]) -> None:
    """Raises DeclarationError for a condition on other steps than `names`, those up to this one."""
    for condition in (step.condition, *([step.stop] if step.stop else [])):
        unknown = [name for name in condition.steps if name not in names]
        if unknown:
            raise DeclarationError(
                f"step={step.name or step.kind!r}, parameters={unknown}: a condition takes the row, then rows of steps up to its "
                f"own, by name ({', '.join(names)}); rename the parameter, or give it a default"
            )
