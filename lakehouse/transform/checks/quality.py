"""Expectations: as Columns inside the streaming plan, and as a suite over rows at rest.

Both come from Great Expectations' own definitions, so a rule means the same row by row as it does
over a partition. It is imported inside functions only: it takes three seconds of a core, and declaring a
table must not cost that. A job needs one thing of it: the condition of each rule. That depends on the
expectation, the columns and the versions alone, so it is compiled once in an environment and kept there
as SQL. A rule that cannot be kept is compiled at each start.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.declare.columns import helper, quoted
from lakehouse.declare.expectations import Expectation
from lakehouse.errors import DeclarationError

_DOMAIN = ("column", "column_A", "column_B", "column_list", "ignore_row_if")
FOLDER = Path(sys.prefix) / "unified-lakehouse-rules"
"""The folder of compiled rules. Like compiled Python, it belongs to one environment and is trusted as its packages are."""
_SETTINGS = ("spark.sql.ansi.enabled", "spark.sql.caseSensitive", "spark.sql.session.timeZone")


@dataclass(frozen=True, slots=True)
class RowRule:
    """An expectation that is judged row by row; `broken` is true for a row that breaks it."""

    expectation: Expectation
    broken: Column


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The result of one expectation over a set of rows."""

    expectation: str
    passed: bool
    unexpected: int
    detail: str


def row_rules(
    spark: SparkSession, schema: StructType, expectations: Sequence[Expectation]
) -> list[RowRule]:
    """Returns the expectations that Great Expectations defines row by row, as Columns over rows of `schema`.

    The others (row counts, means, uniqueness) need all rows: `validate` judges them, on closed
    partitions only. Raises DeclarationError for an unknown expectation, argument or column.
    """
    cache = _CompiledRules(spark, schema.json(), expectations)
    texts = cache.read()
    if texts is None:
        rows = spark.createDataFrame([], schema)
        plain = _plain_names(rows)
        rows = rows.withColumnsRenamed(plain)
        renamed = [_with_names(expectation, plain) for expectation in expectations]
        rules = _rules(rows, renamed)
        texts = [None if rule is None else _sql_of(rule.broken, rows) for rule in rules]
        if [text is None for text in texts] != [rule is None for rule in rules]:
            if renamed != [*expectations]:
                raise DeclarationError(
                    f"expectations, columns={', '.join(plain)}: one of the rules is judged in Python, where a name has no dot; "
                    "have the function rename the columns"
                )
            return [rule for rule in rules if rule]
        texts = [text and _with_dots(text, plain) for text in texts]
        cache.write(texts)
    pairs = zip(expectations, texts, strict=True)
    return [RowRule(expectation, F.expr(text)) for expectation, text in pairs if text is not None]


def _plain_names(rows: DataFrame) -> dict[str, str]:
    """Returns other names for columns that Great Expectations cannot name: to it, a dot means the field of a struct."""
    odd = (name for name in rows.columns if "." in name or "`" in name)
    return {name: helper(f"named_{number}_") for number, name in enumerate(odd)}


def _with_names(expectation: Expectation, names: Mapping[str, str]) -> Expectation:
    """Returns the expectation with other names for its columns."""

    def named(value: Any) -> Any:
        if isinstance(value, list | tuple | set):
            return type(value)(map(named, value))
        return names.get(value, value) if isinstance(value, str) else value

    if not names:
        return expectation
    kwargs = {k: named(v) if k.startswith("column") else v for k, v in expectation.kwargs.items()}
    return replace(expectation, arguments=tuple(kwargs.items()))


def _with_dots(sql: str, names: Mapping[str, str]) -> str:
    """Returns the condition with the columns' own names again."""
    for name, plain in names.items():
        sql = sql.replace(f"`{plain}`", plain).replace(plain, quoted(name))
    return sql


def _rules(rows: DataFrame, expectations: Sequence[Expectation]) -> list[RowRule | None]:
    """Returns each rule as Great Expectations compiles it; None for one that is not judged row by row."""
    great_expectations()
    from great_expectations.execution_engine import SparkDFExecutionEngine

    engine: Any = SparkDFExecutionEngine()
    engine.resolve_metric_bundle = partial(_without_counting, engine.resolve_metric_bundle)
    engine.load_batch_data("schema", rows)
    rules: list[RowRule | None] = []
    for expectation in expectations:
        condition = _condition(engine, expectation)
        if condition is None or " OVER " in str(condition):  # a window function looks at other rows
            rules.append(None)
        else:
            rules.append(RowRule(expectation, F.coalesce(condition, F.lit(False))))
    return rules


def _without_counting(ask: Callable[[list], dict], metric_fn_bundle: Iterable) -> dict:
    """Returns the aggregates that conditions depend on, with 0 for each number of rows.

    Great Expectations would run a Spark job to count them: 1.5 of the 1.6 s that a job's first rule took
    to compile.
    """
    row_counts: dict = {}
    others = []
    for metric in metric_fn_bundle:
        if metric.metric_configuration.metric_name == "table.row_count":
            row_counts[metric.metric_configuration.id] = 0
        else:
            others.append(metric)
    return row_counts | (ask(others) if others else {})


def first_broken(rules: Sequence[RowRule]) -> Column:
    """Returns the first rule that a row breaks, as text; null for a good row."""
    reason = F.lit(None).cast("string")
    for rule in reversed(rules):
        reason = F.when(rule.broken, F.lit(f"expectation: {rule.expectation}")).otherwise(reason)
    return reason


def validate(rows: DataFrame, expectations: Sequence[Expectation]) -> list[SuiteResult]:
    """Runs the suite of all expectations over `rows`. Raises DeclarationError."""
    if not expectations:
        return []
    gx = great_expectations()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    plain = _plain_names(rows)
    rows = rows.withColumnsRenamed(plain)
    source = context.data_sources.add_spark("rows", persist=False)
    definition = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("rows")
    resolved = [_resolved(_with_names(expectation, plain)) for expectation in expectations]
    suite = gx.ExpectationSuite("expectations", resolved)
    result = definition.get_batch({"dataframe": rows}).validate(suite, result_format="SUMMARY")
    return [_summary(e, r) for e, r in zip(expectations, result.results, strict=True)]


def _summary(expectation: Expectation, result) -> SuiteResult:
    details = result.result or {}
    error = _messages(result.exception_info or {})
    seen = details.get("partial_unexpected_list") or details.get("observed_value", "")
    unexpected = int(details.get("unexpected_count") or 0)
    return SuiteResult(str(expectation), bool(result.success), unexpected, f"{error or seen}")


def _messages(failure: Mapping) -> str:
    """Returns the first line of Great Expectations' message about a failure, or those about several metrics."""
    failures = [failure] if "exception_message" in failure else failure.values()
    texts = (str(one["exception_message"] or "").strip() for one in failures)
    return "; ".join(dict.fromkeys(text.splitlines()[0] for text in texts if text))


def great_expectations() -> Any:
    """Returns the package, imported without its telemetry."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    with _named_main():
        import great_expectations

    return great_expectations


@contextmanager
def _named_main() -> Iterator[None]:
    """Gives the main module a file name while Great Expectations is imported, which looks for Spark Connect.

    If Connect is not installed, PySpark ends a process whose main module has no file name, such as a run
    of Dagster's, because it takes it for its own doctests.
    """
    main = sys.modules["__main__"]
    unnamed = not hasattr(main, "__file__")
    if unnamed:
        main.__file__ = ""
    try:
        yield
    finally:
        if unnamed:
            del main.__file__


def _resolved(expectation: Expectation) -> Any:
    from great_expectations.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import get_expectation_impl

    try:
        model: Any = get_expectation_impl(expectation.type)
        return model(**expectation.kwargs)
    except ExpectationNotFoundError as err:
        raise DeclarationError(
            f"expectation={expectation.type!r}: Great Expectations has none of that name; see its gallery for the names"
        ) from err
    except ValueError as err:  # pydantic's ValidationError among them
        raise DeclarationError(
            f"expectation={expectation}: its arguments do not fit: {err}"
        ) from err


def _condition(engine: Any, expectation: Expectation) -> Column | None:
    """Returns the condition under which a row is unexpected; None if the expectation is not row by row."""
    from great_expectations.validator.metric_configuration import MetricConfiguration
    from great_expectations.validator.validation_graph import ValidationGraph

    map_metric = getattr(_resolved(expectation), "map_metric", None)
    if not map_metric:
        return None
    kwargs = expectation.kwargs
    metric = MetricConfiguration(
        f"{map_metric}.condition",
        {k: v for k, v in kwargs.items() if k in _DOMAIN} | {"batch_id": "schema"},
        {k: v for k, v in kwargs.items() if k not in _DOMAIN and k != "mostly"},
    )
    graph = ValidationGraph(execution_engine=engine)
    graph.build_metric_dependency_graph(metric_configuration=metric)
    resolved, aborted = graph.resolve(show_progress_bars=False)
    if aborted:
        failures = {metric: failure["exception_info"] for metric, failure in aborted.items()}
        reasons = _messages(failures)
        raise DeclarationError(
            f"expectation={expectation}: it cannot be judged on this table: {reasons}"
        )
    return resolved[metric.id][0]


class _CompiledRules:
    """The file of one table's compiled rules, named by all that they depend on: also this code, and the columns as JSON."""

    def __init__(
        self, spark: SparkSession, schema: str, expectations: Sequence[Expectation]
    ) -> None:
        packages = [f"{name} {version(name)}" for name in ("great-expectations", "pyspark")]
        settings = [f"{name}={spark.conf.get(name)}" for name in _SETTINGS]
        code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        self._key = [*packages, *settings, code, schema, *map(repr, expectations)]
        name = hashlib.sha256(json.dumps(self._key).encode()).hexdigest()
        self._path = FOLDER / f"{name[:32]}.json"

    def read(self) -> list[str | None] | None:
        """Returns the SQL of each rule, null for one that is not judged row by row; None if the file is missing or torn."""
        try:
            content = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        whole = isinstance(content, dict) and content.get("of") == self._key
        return content["rules"] if whole else None

    def write(self, rules: Sequence[str | None]) -> None:
        beside = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(exist_ok=True)
            beside.write_text(json.dumps({"rules": rules, "of": self._key}))
            beside.replace(self._path)
        except OSError as err:
            logging.getLogger(__name__).info(
                "rules are compiled at each start, because they cannot be kept: %s", err
            )


def _sql_of(rule: Column, rows: DataFrame) -> str | None:
    """Returns a rule over `rows` as SQL that Spark reads as the same rule; None if there is none, as for Python functions."""
    compiled = _analysed(rule, rows)
    expression = compiled.expressions().head().child()
    jvm: Any = rows.sparkSession._jvm
    if expression.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()):
        return None
    text = expression.sql()
    try:
        again = _analysed(F.expr(text), rows)
    except (AnalysisException, ParseException):
        return None
    return text if compiled.sameResult(again) else None


def _analysed(rule: Column, rows: DataFrame) -> Any:
    return rows.select(rule.alias("broken"))._jdf.queryExecution().analyzed()
