"""The columns of an Iceberg table of others, by their field ids.

A shape has them under the names that they were first read by, so a file reads as before when its owner renames a column.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lakehouse.errors import SourceError

if TYPE_CHECKING:
    from pyiceberg.table import Table as Found
    from pyiceberg.types import IcebergType, NestedField

_SPARK = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "uuid": "string",
    "binary": "binary",
}
"""The types of Iceberg that Spark has, as Spark names them."""


def check_same(table: "Found", name: str, before: Mapping[str, Any]) -> None:
    """Raises SourceError for another table under the name than the one whose shape is `before`."""
    if before["uuid"] != (uuid := str(table.metadata.table_uuid)):
        raise SourceError(
            f"iceberg_table={name}, uuid={uuid}: it is another table than the one that was read, whose uuid is {before['uuid']}; "
            "read it by an ingest table of another name, or put the other one back"
        )


def shape(
    table: "Found",
    name: str,
    declared: Mapping[str, str],
    before: Mapping[str, Any] | None,
    whole: bool,
) -> dict[str, Any]:
    """The columns to read, for `columns_of`: those of the names and types of Spark that are declared, or all of the table.

    A column that is in `before` keeps the name that it has there. Raises SourceError for one that is not there, or has
    another type.
    """
    from pyiceberg.schema import Schema, index_by_id

    present = table.schema()
    known = columns_of(before) if before else Schema()
    names = {number: each.name for number, each in index_by_id(known).items()}
    bound = {each.name: each.field_id for each in known.columns}
    there = {each.name: each for each in present.columns}
    by_id = {each.field_id: each for each in present.columns}
    columns = []
    for column, wanted in declared.items():
        if column in bound:
            if (number := bound[column]) not in by_id:
                raise SourceError(
                    f"iceberg_table={name}, column={column}: its owner has dropped it, so rows from now on are without it; have "
                    "the function add it as null, leave it out of the schema, and accept that by `lakehouse table accept`"
                )
            columns.append(by_id[number])
            continue
        actual = (
            spark_type(there[column].field_type)
            if column in there
            else f"not there, but {', '.join(there)}"
        )
        if actual != wanted:
            raise SourceError(
                f"iceberg_table={name}, column={column}: the schema has it as {wanted}, and in the Iceberg table it is {actual}; "
                "declare the columns as they are there; of a topic's history, which has the topic's columns, have a copy "
                "written with these types, and read the copy"
            )
        columns.append(there[column])
    if whole:
        chosen = {each.field_id for each in columns}
        columns += [
            each
            for each in present.columns
            if each.field_id not in chosen and each.name not in declared
        ]
    for each in columns:
        if "?" in spark_type(each.field_type):
            raise SourceError(
                f"iceberg_table={name}, column={each.name}, type={each.field_type}: Spark has no such type; leave "
                "unknown_fields='quarantine' out, or have its owner write a copy without the column"
            )
    shaped = Schema(*(_named(each, names) for each in columns))
    return {
        "uuid": str(table.metadata.table_uuid),
        "schema": json.loads(shaped.model_dump_json()),
        "mapping": table.properties.get("schema.name-mapping.default", ""),
        "version": table.format_version,
    }


def columns_of(shape: Mapping[str, Any]) -> Any:
    """The columns of a shape, as pyiceberg has them."""
    return _schema(json.dumps(shape["schema"]))


@lru_cache(maxsize=16)
def _schema(text: str) -> Any:
    from pyiceberg.schema import Schema

    return Schema.model_validate_json(text)


def _named(column: "NestedField", names: Mapping[int, str]) -> "NestedField":
    """A column under the name that it is known by. It may be null, which is judged row by row."""
    return column.model_copy(
        update={
            "name": names.get(column.field_id, column.name),
            "field_type": _typed(column.field_type, names),
            "required": False,
        }
    )


def _typed(kind: "IcebergType", names: Mapping[int, str]) -> "IcebergType":
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        fields = {
            each.name: each for each in (_named(each, names) for each in reversed(kind.fields))
        }
        return StructType(*reversed(fields.values()))
    if isinstance(kind, ListType):
        return ListType(
            kind.element_id,
            _typed(kind.element_type, names),
            element_required=kind.element_required,
        )
    if isinstance(kind, MapType):
        return MapType(
            kind.key_id,
            _typed(kind.key_type, names),
            kind.value_id,
            _typed(kind.value_type, names),
            value_required=kind.value_required,
        )
    return kind


def spark_type(kind: "IcebergType", *, inner: bool = False) -> str:
    """A type as Spark names it; with a question mark in it if Spark has none."""
    from pyiceberg.types import DecimalType, FixedType, ListType, MapType, StructType

    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{f.name}:{spark_type(f.field_type, inner=True)}' for f in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"array<{spark_type(kind.element_type, inner=True)}>"
    if isinstance(kind, MapType):
        return f"map<{spark_type(kind.key_type, inner=True)},{spark_type(kind.value_type, inner=True)}>"
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    if isinstance(kind, FixedType) and not inner:
        return "binary"
    if inner and str(kind) == "uuid":
        return f"{kind}?"
    return _SPARK.get(str(kind), f"{kind}?")
