"""Rows with a column of each type."""

from datetime import UTC, datetime
from decimal import Decimal

WIDE = (
    "w struct<start: timestamp, end: timestamp>, at timestamp, local timestamp_ntz, day date, n bigint, i int, s smallint, "
    "y tinyint, f float, d double, price decimal(9,2), large decimal(30,6), ok boolean, name string, raw binary, "
    "list array<struct<a: int, b: string>>, named map<string, decimal(5,1)>, _origin string, _partition string"
)
AT = datetime(2026, 3, 29, 1, 30, 0, 123456, UTC)


def values(n: int, partition: str | None = "2026-03-29-01") -> tuple:
    return (
        (AT, AT), AT, AT.replace(tzinfo=None), AT.date(), n, n, n, n, 1.5, 2.5, Decimal("12.34"), Decimal("1.000001"), True,
        f"näme {n}", b"\xff", [(1, "x")], {"k": Decimal("1.5")}, "stream", partition,
    )  # fmt: skip
