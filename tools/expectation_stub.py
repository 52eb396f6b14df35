"""The expectations of the installed Great Expectations, written down for declarations, editors and type checkers.

    python -m tools.expectation_stub

writes `lakehouse/declare/expectation_names.json` and `lakehouse/declare/expectations.pyi`. A test
fails when they differ from what is installed.
"""

import datetime
import inspect
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from lakehouse.declare import expectation_names
from lakehouse.declare.expectation_names import NOT_TAKEN, PARSERS, Signature
from lakehouse.transform.checks import quality

STUB = Path(expectation_names.__file__).with_name("expectations.pyi")
WIDTH = 100  # the code is formatted to this
_ALL_ROWS = {  # conditions that look at other rows: by a window, or by what was aggregated before
    "expect_column_value_z_scores_to_be_less_than",
    "expect_column_values_to_be_decreasing",
    "expect_column_values_to_be_increasing",
    "expect_column_values_to_be_unique",
    "expect_column_values_to_not_be_outliers",
    "expect_compound_columns_to_be_unique",
}
_POSITIONAL = {"column": ("column",), "column_A": ("column_A", "column_B"), "column_list": ("column_list",)}  # fmt: skip
_COMMON = ("mostly", "ignore_row_if", "row_condition", "condition_parser", "description", "notes")
_TYPES = {  # where the model's own says less, or more, than can be judged
    "row_condition": "str",
    "condition_parser": f"Literal[{', '.join(map(json.dumps, PARSERS))}]",
    "column_set": "Sequence[str]",
    "column_list": "Sequence[str]",
}
_NOT_ON_SPARK = "Great Expectations does not judge it on Spark"
_MAPPING = "it is given a mapping, and expectations are compared by single values and lists of them"
_INSTEAD = {
    "expect_column_kl_divergence_to_be_less_than": "use column_mean_to_be_between and column_stdev_to_be_between",
    "expect_column_quantile_values_to_be_between": "use column_median_to_be_between",
    "expect_column_values_to_be_dateutil_parseable": "use column_values_to_match_strftime_format",
    "expect_column_values_to_be_in_type_list": "use column_type_to_be",
    "expect_column_values_to_be_of_type": "use column_type_to_be",
    "expect_column_values_to_match_json_schema": "use column_values_to_be_json_parseable, or parse it in the function",
    "expect_column_values_to_match_like_pattern": "use column_values_to_match_regex",
    "expect_column_values_to_match_like_pattern_list": "use column_values_to_match_regex_list",
    "expect_column_values_to_not_match_like_pattern": "use column_values_to_not_match_regex",
    "expect_column_values_to_not_match_like_pattern_list": "use column_values_to_not_match_regex_list",
}
_HEAD = '''"""Written by `python -m tools.expectation_stub` from great-expectations {version}."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation of Great Expectations by name and arguments, resolved when it is used."""

    type: str
    arguments: tuple[tuple[str, object], ...] = ()

    @property
    def kwargs(self) -> dict[str, object]: ...

class _Expect:
    """Every expectation of Great Expectations that can be judged, without importing it."""

'''


@dataclass(frozen=True, slots=True)
class Installed:
    """An expectation of Great Expectations, as a declaration may use it."""

    model: typing.Any  # the pydantic class of its arguments
    has_condition: bool  # True if it is defined row by row
    on_spark: bool
    needed: frozenset[str]  # arguments that its condition requires, though the model has a default


def installed() -> dict[str, Installed]:
    """Returns every expectation of the installed Great Expectations, by name."""
    quality.great_expectations()
    from great_expectations.expectations import registry

    names = registry.list_registered_expectation_implementations()
    return {name: _installed(registry.get_expectation_impl(name)) for name in names}


def _installed(model) -> Installed:
    from great_expectations.exceptions import MetricProviderError
    from great_expectations.execution_engine import SparkDFExecutionEngine
    from great_expectations.expectations import registry

    on_spark, metric = _names_spark(model), getattr(model, "map_metric", None)
    if not metric:
        return Installed(model, False, on_spark, frozenset())
    condition = f"{metric}.condition"
    engine = object.__new__(SparkDFExecutionEngine)  # to name it: a real one starts Spark
    try:
        provider, function = registry.get_metric_provider(condition, engine)
    except MetricProviderError:
        return Installed(model, True, False, frozenset())
    parameters = inspect.signature(function).parameters
    needed = {
        key
        for key in registry.get_metric_kwargs(condition)["metric_value_keys"]
        # its defaults are for a suite, in which Great Expectations fills them in
        if key in provider.default_kwarg_values
        or (key in parameters and parameters[key].default is inspect.Parameter.empty)
    }
    return Installed(model, True, on_spark, frozenset(needed))


def _names_spark(model) -> bool:
    """Returns True if its documentation names Spark, or no data source at all: some work without."""
    shown = model.schema()["properties"]["metadata"]["properties"]
    return "Spark" in shown.get("supported_data_sources", {}).get("const", ["Spark"])


def main() -> None:
    """Writes both files."""
    for path, text in written().items():
        path.write_text(text)


def written() -> dict[Path, str]:
    """Returns the contents of the two files."""
    expectations = {name: model for name, model in sorted(installed().items()) if name.startswith("expect_")}  # fmt: skip
    refused = {name: why for name, model in expectations.items() if (why := _refusal(name, model))}
    judged = {name: model for name, model in expectations.items() if name not in refused}
    return {
        expectation_names.PATH: _names(judged, refused),
        STUB: _stub(judged),
    }


def _refusal(name: str, each: Installed) -> str:
    """Returns why an expectation cannot be judged, with the fix; empty if it can."""
    why = "" if each.on_spark else _NOT_ON_SPARK
    if any(_is_mapping(each.model.__fields__[one]) for one in each.model.args_keys):
        why = _MAPPING
    return (
        f"{why}; {_INSTEAD.get(name, 'compare in the function of a table that reads both')}"
        if why
        else ""
    )


def _is_mapping(field) -> bool:
    return not _parts(field.outer_type_)


def _signature(name: str, each: Installed) -> Signature:
    fields = _fields(each)
    positional = _POSITIONAL.get(next(iter(fields)), ())
    needed = each.needed.union(positional)
    required = tuple(one for one in fields if fields[one].required or one in needed)
    return Signature(
        positional,
        required,
        tuple(one for one in fields if one not in required),
        ("min_value", "max_value") if _needs_a_bound(each) else (),
        each.has_condition and name not in _ALL_ROWS,
    )


def _fields(each: Installed) -> dict[str, typing.Any]:
    """Returns the fields in the order of arguments: the expectation's own, then common ones."""
    model = each.model.__fields__
    own = [*each.model.args_keys, *(one for one in model if one not in _COMMON)]
    names = dict.fromkeys([*own, *(one for one in _COMMON if one in model)])
    return {name: model[name] for name in names if name not in NOT_TAKEN}


def _needs_a_bound(each: Installed) -> bool:
    if not {"min_value", "max_value"} <= each.model.__fields__.keys():
        return False
    needed = {name: "x" for name, field in each.model.__fields__.items() if field.required}
    try:
        each.model(**needed)
    except ValueError:
        return True
    return False


def _names(judged: Mapping[str, Installed], refused: Mapping[str, str]) -> str:
    """Returns JSON with a line for each expectation, so that an upgrade shows what changed."""
    lines = {name: _as_written(_signature(name, each)) for name, each in judged.items()}
    parts = (("expectations", lines), ("not_judged", refused))
    parts_of_file = (f'  "{part}": {{\n{_lines(each)}\n  }}' for part, each in parts)
    return "{\n" + ",\n".join(parts_of_file) + "\n}\n"


def _as_written(signature: Signature) -> dict[str, object]:
    values = {name: getattr(signature, name) for name in Signature.__dataclass_fields__}
    return {
        name: value
        for name, value in values.items()
        if value or name in ("positional", "required", "optional")
    }


def _lines(values: Mapping[str, object]) -> str:
    return ",\n".join(f'    "{name}": {json.dumps(value)}' for name, value in values.items())


def _stub(judged: Mapping[str, Installed]) -> str:
    methods = "\n".join(_method(name, each) for name, each in judged.items())
    return f"{_HEAD.format(version=version('great-expectations'))}{methods}\nexpect: _Expect\n"


def _method(name: str, each: Installed) -> str:
    signature, fields = _signature(name, each), _fields(each)
    named = [one for one in fields if one not in signature.positional]
    parameters = [
        "self",
        *(_parameter(one, fields[one], True) for one in signature.positional),
        *(["*"] if named else []),
        *(_parameter(one, fields[one], one in signature.required) for one in named),
    ]
    start, end = f"    def {name.removeprefix('expect_')}(", ") -> Expectation:"
    line = f"{start}{', '.join(parameters)}{end}"
    if len(line) > WIDTH:
        line = "\n".join([start, *map(_on_its_own, parameters), f"    {end}"])
    return f'{line}\n        """{_summary(each)}"""\n'


def _on_its_own(parameter: str) -> str:
    """Returns a parameter on lines of its own, as the formatter breaks them."""
    line = f"        {parameter},"
    if len(line) <= WIDTH:
        return line
    start, _, rest = line.partition("[")
    inner, _, end = rest.rpartition("]")
    return f"{start}[\n            {inner}\n        ]{end}"


def _summary(each: Installed) -> str:
    shown = each.model.schema()["properties"]["metadata"]["properties"]
    text = shown.get("short_description", {}).get("const") or each.model.__doc__.strip()
    return f"{text.splitlines()[0].partition('. ')[0].strip().rstrip('.')}."


def _parameter(name: str, field, required: bool) -> str:
    parts = [_TYPES[name]] if name in _TYPES else list(dict.fromkeys(_parts(field.outer_type_)))
    if required:
        return f"{name}: {' | '.join(parts)}"
    if field.allow_none:
        parts.append("None")
    default = json.dumps(field.default) if isinstance(field.default, str) else repr(field.default)
    return f"{name}: {' | '.join(parts)} = {default}"


def _parts(annotation) -> list[str]:
    """Returns the alternatives of a field's type for a stub, without mappings, which are parameters of a suite."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _parts(inner[0])
    if origin in (typing.Union, types.UnionType):
        return [part for part_type in inner for part in _parts(part_type)]
    if origin is typing.Literal:
        return [f"Literal[{', '.join(json.dumps(part_type) for part_type in inner)}]"]
    if origin is tuple:
        return [f"tuple[{', '.join(' | '.join(_parts(part_type)) for part_type in inner)}]"]
    if origin is not None or annotation in (list, set, typing.List):  # noqa: UP006
        items = [part for part_type in inner for part in _parts(part_type)] or ["object"]
        return [f"Sequence[{' | '.join(items)}]"]
    return list(_plain(annotation))


def _plain(annotation) -> Iterator[str]:
    named = {typing.Any: "object", datetime.date: "date", datetime.datetime: "datetime"}
    if annotation in named:
        yield named[annotation]
        return
    # bool before int, of which it is a kind; pydantic's own types are kinds of these
    for plain in (bool, int, float, str):
        if isinstance(annotation, type) and issubclass(annotation, plain):
            yield plain.__name__
            return


if __name__ == "__main__":
    main()
