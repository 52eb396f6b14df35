"""Iceberg tables of others, as the input of an ingest table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Unpack

from lakehouse.declare.inputs.source_checks import check_records
from lakehouse.declare.inputs.sources import (
    About,
    FilesSource,
    RecordOptions,
    absolute,
    record_options,
)
from lakehouse.errors import DeclarationError


@dataclass(frozen=True, slots=True)
class IcebergSource(FilesSource):
    """An Iceberg table of others; each row that is appended to it is a record."""

    # none: the address is the path of the table; may hold secrets
    catalog: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    what = "Iceberg table"
    while_resting = "its snapshots are read as long as its owner keeps them: start the job before they are expired"

    @property
    def about(self) -> About:
        shown = f"The Iceberg table `{self.address}` of others: the rows that are appended to it."
        return About(shown, "iceberg", {"path": self.address})

    def dataset(self, broker: Callable[[], str]) -> tuple[str, str]:
        return dict(self.catalog).get("uri", "file").rpartition("@")[2], self.address


def iceberg_table(
    name: str,
    *,
    schema: str,
    catalog: Mapping[str, str] | None = None,
    **records: Unpack[RecordOptions],
) -> IcebergSource:
    """Declares an Iceberg table of others as the input of an ingest table: its rows, then those that are appended.

        order_rows = iceberg_table(
            "shop.orders",
            catalog={"type": "rest", "uri": "https://catalog.example", "token": "${CATALOG_TOKEN}"},
            schema="order_id BIGINT NOT NULL, at TIMESTAMP NOT NULL",
        )

    Its snapshots are read one by one (extra `[iceberg]`). Compaction is passed over. A snapshot that removes or changes
    rows stops the query with an error that names it: an ingest table keeps the rows that it has read. A column is
    identified by its field id from the first read on, so it may be renamed there.

    :param name: its name in the catalog, with its namespace. Without a catalog, the path of its folder, which has
        `metadata/version-hint.text`, or of one of its files `*.metadata.json`; a relative path is relative to the module
        that declares it.
    :param schema: Spark DDL of the columns to read, with their types there.
    :param catalog: the properties of pyiceberg for the catalog, as texts: `type`, `uri`, `warehouse` and so on, and `name`
        ("default" if left out). `${NAME}` in a value is a variable in the environment of the job, so that secrets stay out
        of code.
    :param records: see `RecordOptions`.
    :raises DeclarationError: for an impossible name, catalog or schema.
    """
    _check(name, catalog)
    source = IcebergSource(
        name if catalog else absolute(name),
        schema,
        "iceberg",
        **record_options("iceberg_table", records),
        catalog=tuple(sorted((catalog or {}).items())),
    )
    check_records(source)
    return source


def _check(name: str, catalog: Mapping[str, str] | None) -> None:
    if catalog is None:
        if "/" not in name:
            raise DeclarationError(
                f"iceberg_table={name!r}: without a catalog it is a path; give that of a folder or *.metadata.json, or a catalog"
            )
        return
    if not {"type", "uri", "py-catalog-impl"} & catalog.keys():
        raise DeclarationError(
            f"iceberg_table={name!r}, catalog={sorted(catalog)}: a catalog is known by its type or uri; give one of them"
        )
    if "." not in name.strip("."):
        raise DeclarationError(
            f"iceberg_table={name!r}: in a catalog a table is in a namespace; write 'namespace.table'"
        )
    for key, value in catalog.items():
        if not isinstance(value, str):
            raise DeclarationError(
                f"iceberg_table={name!r}, catalog, {key}={value!r}: properties of a catalog are texts; put it in quotes"
            )
