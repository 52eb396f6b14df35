"""Row rules that were compiled before, kept as SQL beside the packages that compiled them.

Great Expectations takes three seconds of a core to import, and a job needs one thing of it: the
condition of each rule. That depends on the expectation, the columns and the versions alone, so it is
compiled once in an environment. A rule that cannot be kept is compiled at each start.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.declare.expectations import Expectation

FOLDER = Path(sys.prefix) / "unified-lakehouse-rules"
"""Like compiled Python, it belongs to one environment and is trusted as its packages are."""
_SETTINGS = ("spark.sql.ansi.enabled", "spark.sql.caseSensitive", "spark.sql.session.timeZone")


class Kept:
    """The file of one table's rules, named by all that they depend on.

    :param compiler: the code that compiles them; other code has another file.
    :param schema: the columns that they are judged on, as JSON.
    """

    def __init__(
        self, spark: SparkSession, compiler: Path, schema: str, expectations: Sequence[Expectation]
    ) -> None:
        packages = [f"{name} {version(name)}" for name in ("great-expectations", "pyspark")]
        settings = [f"{name}={spark.conf.get(name)}" for name in _SETTINGS]
        code = hashlib.sha256(compiler.read_bytes() + Path(__file__).read_bytes()).hexdigest()
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


def sql_of(rule: Column, rows: DataFrame) -> str | None:
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
