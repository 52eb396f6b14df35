"""The limits of a query in Spark: it may read tables of this lakehouse and compute values. No file, no program, no command.

The parsed plan is checked first, because analysis itself opens files and computes the rows of VALUES. The analysed
plan is checked as well: each relation in it lies within a view of the query.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lakehouse.errors import QueryError
from lakehouse.transform.analysis.plan_tree import kind_of, seq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CATALYST = "org.apache.spark.sql.catalyst"
_PARSED_NAMES = """
Aggregate AsOfJoin Deduplicate Distinct Except Expand Filter Generate GlobalLimit Intersect Join LateralJoin
LimitAll LocalLimit LocalRelation Offset OneRowRelation PipeOperator Pivot Project Range RebalancePartitions Repartition
RepartitionByExpression Sample Sort SubqueryAlias Transpose Union UnresolvedHaving UnresolvedHint
UnresolvedInlineTable UnresolvedRelation UnresolvedSubqueryColumnAliases UnresolvedTVFAliases
UnresolvedTableValuedFunction UnresolvedWith Unpivot Window WithWindowDefinition
"""
_PARSED = frozenset(_PARSED_NAMES.split())
_ANALYSED_NAMES = """
CTERelationDef CTERelationRef ResolvedHint ResolvedInlineTable UnionLoop UnionLoopRef WithCTE
"""
_ANALYSED = _PARSED.union(_ANALYSED_NAMES.split())
# groups of Spark's functions that compute values from values; misc_funcs also has those that call methods of Java
_GROUPS_NAMES = """
agg array bitwise collection conditional conversion csv datetime generator hash json lambda map math predicate sketch
st string struct url variant vector window
"""
_GROUPS = frozenset(f"{group}_funcs" for group in _GROUPS_NAMES.split())
_FUNCTIONS_NAMES = """
aes_decrypt aes_encrypt assert_true bitmap_bit_position bitmap_bucket_number bitmap_count current_catalog
current_database current_schema current_user monotonically_increasing_id raise_error session_user spark_partition_id
try_aes_decrypt typeof user uuid version
"""
_FUNCTIONS = frozenset(_FUNCTIONS_NAMES.split())
_OF_ROWS_NAMES = """
explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack variant_explode
variant_explode_outer
"""
_OF_ROWS = frozenset(_OF_ROWS_NAMES.split())


def check_parsed(spark: "SparkSession", sql: str) -> None:
    """Raises QueryError for a query with an operator, a relation or a function that is not in a list.

    Analysis knows best which table a single name means; this function refuses relations without a single name.
    """
    session: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    # Spark's parser substitutes variables: the environment (${env:HOME}), its settings and those of Java
    if jvm.org.apache.spark.sql.internal.VariableSubstitution().substitute(sql) != sql:
        raise _refused(sql, "variable", "${...}")
    for node, kind, is_plan in _nodes(spark, session.sessionState().sqlParser().parsePlan(sql)):
        if is_plan and kind not in _PARSED:
            raise _refused(sql, "operator", kind)
        if kind == "UnresolvedRelation" and node.multipartIdentifier().size() != 1:
            raise _refused(sql, "relation", ".".join(seq(node.multipartIdentifier())))
        if kind == "UnresolvedTableValuedFunction":
            _check_function(sql, seq(node.name()), lambda name: name in _OF_ROWS)
        elif kind == "UnresolvedFunction":
            _check_function(sql, seq(node.nameParts()), lambda name: _computes(spark, name))
        elif kind == "UnresolvedGenerator":
            named = node.name().unquotedString().split(".")
            _check_function(sql, named, lambda name: name in _OF_ROWS)
        elif "UnresolvedIdentifier" in kind:
            raise _refused(sql, "operator", "IDENTIFIER")


def check_analysed(sql: str, rows: "DataFrame") -> None:
    """Raises QueryError for a query that reads a relation in no view of its session, or holds a command."""
    plan = rows._jdf.queryExecution().analyzed()
    for _, kind, is_plan in _nodes(rows.sparkSession, plan):
        if is_plan and kind not in _ANALYSED:
            raise _refused(sql, "operator", kind)
        if kind == "CallMethodViaReflection":
            raise _refused(sql, "function", "reflect")


def _computes(spark: "SparkSession", name: str) -> bool:
    """Returns True unless the name is a function of Spark's own that may do more than compute values from values."""
    if name in _FUNCTIONS:
        return True
    jvm: Any = spark._jvm
    registry = getattr(jvm, f"{_CATALYST}.analysis.FunctionRegistry").builtin()
    identifier = getattr(jvm, f"{_CATALYST}.FunctionIdentifier")
    described = registry.lookupFunction(identifier(name))
    return not described.isDefined() or described.get().getGroup() in _GROUPS


def _check_function(sql: str, parts: list[str], is_allowed: Callable[[str], bool]) -> None:
    if len(parts) != 1 or not is_allowed(parts[0].lower()):
        raise _refused(sql, "function", ".".join(parts))


def _nodes(spark: "SparkSession", plan: Any) -> Iterator[tuple[Any, str, bool]]:
    """Yields each operator and expression, also in subqueries and WITH, with its kind, and True if it is an operator.

    Nodes within a temporary view are of this lakehouse, and are left out.
    """
    jvm: Any = spark._jvm
    operators = jvm.java.lang.Class.forName(f"{_CATALYST}.plans.logical.LogicalPlan")
    subqueries = jvm.java.lang.Class.forName(f"{_CATALYST}.expressions.PlanExpression")
    todo = [plan]
    while todo:
        node = todo.pop()
        kind = kind_of(node).rstrip("$")
        if kind == "View" and node.isTempView():
            continue
        is_plan = operators.isInstance(node)
        yield node, kind, is_plan
        todo += seq(node.children())
        if is_plan:
            todo += seq(node.expressions())
        elif subqueries.isInstance(node):
            todo.append(node.plan())
        if kind == "UnresolvedWith":
            todo += seq(node.innerChildren())
        elif kind == "WithWindowDefinition":  # Spark leaves these out of an operator's expressions
            todo += seq(node.windowDefinitions().values().toSeq())


def _refused(sql: str, what: str, name: str) -> QueryError:
    return QueryError(
        f"sql={sql!r}, {what}={name}: a query reads tables of this lakehouse and computes values; use PySpark for what needs more"
    )
