"""The expectations of Great Expectations and their arguments, without importing it, which takes seconds.

`expectation_names.json` has them, and `expectations.pyi` shows them to editors and type checkers;
`python -m tools.expectation_stub` writes both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from lakehouse.errors import DeclarationError

PATH = Path(__file__).with_suffix(".json")
PARSERS = ("spark", "great_expectations")  # of `row_condition`; "pandas" is for rows in memory
_OF_SERVICE = "it belongs to Great Expectations' own service; leave it out"
NOT_TAKEN = {  # arguments of every expectation that would do nothing here
    "severity": "a row is kept or quarantined, and a check holds or does not; leave it out",
    "meta": "nothing reads it; put text into notes",
    **dict.fromkeys(("windows", "id", "rendered_content"), _OF_SERVICE),
    "library_metadata": "it describes the expectation, and is not to be given; leave it out",
    "batch_id": "the rows of the table are what is judged; leave it out",
    "result_format": "the check asks for what it shows; leave it out",
    "catch_exceptions": "the check reports what goes wrong; leave it out",
}


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of one expectation."""

    positional: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    any_of: tuple[str, ...] = ()  # at least one of these
    by_row: bool = False  # True if it is judged for each row alone


@cache
def signatures() -> Mapping[str, Signature]:
    """Returns the expectations that can be judged, by name."""
    by_name: dict[str, Signature] = {}
    for name, given in _written()["expectations"].items():
        values: dict[str, Any] = dict(given)
        values |= {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
        by_name[name] = Signature(**values)
    return by_name


def not_judged() -> Mapping[str, str]:
    """Returns the expectations that cannot be judged here, each with the reason and what to do instead."""
    return _written()["not_judged"]


@cache
def _written() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = json.loads(PATH.read_text())
    return content


def arguments(
    name: str, positional: Sequence[object], named: Mapping[str, object]
) -> dict[str, object]:
    """Returns the arguments of the expectation `name`, all by name, as values that can be compared.

    An unknown name is not checked: it may be an expectation of the user's own. Raises DeclarationError.
    """
    if name in not_judged():
        raise DeclarationError(f"expectation={name}: {not_judged()[name]}")
    signature = signatures().get(name)
    usual = ("column_A", "column_B") if "_pair_" in name else ("column",)
    places = signature.positional if signature else usual
    if len(positional) > len(places):
        raise DeclarationError(
            f"expectation={name}, arguments={tuple(positional)!r}: "
            f"only {', '.join(places) or 'none'} may be positional; give the rest by name"
        )
    by_name = dict(zip(places, positional, strict=False))
    if twice := sorted(by_name.keys() & named.keys()):
        raise DeclarationError(
            f"expectation={name}, argument={twice[0]!r}: it is given twice; leave one out"
        )
    by_name |= named
    if signature:
        _check(name, signature, by_name)
    return {argument: _frozen(name, argument, value) for argument, value in by_name.items()}


def _check(name: str, signature: Signature, given: Mapping[str, object]) -> None:
    for argument in given:
        if argument not in signature.required + signature.optional:
            raise DeclarationError(_unknown(name, signature, argument, given[argument]))
    present = {argument for argument, value in given.items() if value is not None}
    if missing := [argument for argument in signature.required if argument not in present]:
        raise DeclarationError(
            f"expectation={name}, argument={missing[0]!r}: it is needed, and is not there; give "
            f"{' and '.join(f'{option}=...' for option in missing)}"
        )
    if signature.any_of and present.isdisjoint(signature.any_of):
        raise DeclarationError(
            f"expectation={name}, arguments={', '.join(signature.any_of)}: one of them is needed, and none is there; give "
            f"{signature.any_of[0]}=..."
        )
    if "row_condition" in present and given.get("condition_parser") not in PARSERS:
        raise DeclarationError(
            f"expectation={name}, condition_parser={given.get('condition_parser')!r}: it says what language row_condition is in; "
            f"give one of {', '.join(map(repr, PARSERS))}"
        )


def _unknown(name: str, signature: Signature, argument: str, value: object) -> str:
    takes = signature.required + signature.optional
    if argument in NOT_TAKEN:
        return f"expectation={name}, {argument}={value!r}: {NOT_TAKEN[argument]}"
    near = get_close_matches(argument, takes, 1, 0.5)  # 0.5: `min` is near `min_value`
    hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(takes)}"
    return f"expectation={name}, argument={argument!r}: it has no such argument; {hint}"


def _frozen(name: str, argument: str, value: object) -> object:
    # sorted: the order of a set differs between processes, and would change the code version
    ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    frozen = tuple(ordered) if isinstance(ordered, list) else ordered
    try:
        hash(frozen)
    except TypeError as err:
        raise DeclarationError(
            f"expectation={name}, {argument}={value!r}: single values and lists of them can be judged, no mapping and no list "
            "in a list; write tuples inside a list"
        ) from err
    return frozen
