"""Rows that are drawn at random, by which plans are compared."""

import json
import random
from datetime import timedelta

import pyarrow as pa

from lakehouse.ranges import EPOCH

COLUMNS = "k STRING, v BIGINT, at TIMESTAMP, price DECIMAL(12,2), body STRING, tags ARRAY<STRING>"


def rows(columns: pa.Schema, count: int, seed: int) -> pa.Table:
    """Returns so many rows of some of the `COLUMNS`, the same for a seed."""
    choose = random.Random(seed)
    many = range(count)
    values = {
        "k": [None if choose.random() < 0.05 else f"k{choose.randrange(25)}" for _ in many],
        "v": [choose.randrange(1000) for _ in many],
        "at": [EPOCH + timedelta(microseconds=choose.randrange(-(10**16), 10**16)) for _ in many],
        "price": [None if choose.random() < 0.05 else choose.randrange(10**6) / 4 for _ in many],
        "body": [choose.choice(["", "{", json.dumps({"a": f"a{n}", "b": n})]) for n in many],
        "tags": [[f"t{n}" for n in range(choose.randrange(4))] for _ in many],
    }
    arrays = {name: pa.array(each) for name, each in values.items()}
    return pa.table({name: arrays[name].cast(columns.field(name).type) for name in columns.names})
