"""Tables with a row, or versions, for each key: what each version holds, who may write, what is kept, and point reads."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder
from deltalake.schema import PrimitiveType
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from lakehouse import reference_table
from lakehouse.batch import reference_tables
from lakehouse.cli.main import app as command_line
from lakehouse.errors import CommitError, RangeError
from lakehouse.maintenance import retention
from lakehouse.settings import Settings
from lakehouse.storage.delta import (
    committer,
    deletion_vectors,
    delta_log,
    delta_writer,
    log_state,
    row_keys,
    table_creation,
)
from lakehouse.storage.delta.digest import digest
from lakehouse.storage.delta.row_keys import KEY, of_text
from lakehouse.storage.keyed import key_index, keyed_files, point_reads
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform import creation
from support import TESTS, payments, wide_rows
from support.accounts import (
    APP,
    ARROW,
    AT,
    TYPES,
    Key,
    by_deltalake,
    keys,
    rows,
    table,
    upsert,
)

DAY = 86_400


def by_spark(spark, path: Path, version: int) -> Counter:
    found = (
        spark.read.format("delta")
        .option("versionAsOf", version)
        .load(str(path))
        .select("account", "region", "n")
        .collect()
    )
    return Counter(map(tuple, found))


def as_rows(held: dict[Key, list[int]]) -> Counter:
    return Counter((*key, n) for key, numbers in held.items() for n in numbers)


def small(monkeypatch) -> None:
    """Files and row groups so small that everything that happens to large tables happens to one of some hundred rows."""
    for name, value in {"LARGE": 200, "GROUP": 32, "_LEAST": 8}.items():
        monkeypatch.setattr(keyed_files, name, value)


def happened(path: Path) -> Counter:
    """How often a file was merged or written again, went whole, or got another vector."""
    seen: Counter[str] = Counter()
    for version, actions in log_state.commits(path, 1):
        added = {a["add"]["path"]: a["add"] for a in actions if "add" in a}
        removed = {a["remove"]["path"]: a["remove"] for a in actions if "remove" in a}
        gone = removed.keys() - added.keys()
        held = (
            {file["path"]: file for file in log_state.files_at(path, version - 1)} if gone else {}
        )
        living = {name: log_state._living(held[name]) for name in gone}
        rows = sum(log_state._living(a) for a in added.values() if a["path"] not in removed)
        seen["marked"] += len(removed.keys() & added.keys())
        seen["gone"] += len(gone)
        seen["merged"] += len(gone) > 1 and rows > 20
        seen["rewritten"] += len(gone) == 1 and max(living.values()) > 50 and rows > 50
        assert all(a["remove"]["dataChange"] for a in actions if "remove" in a)
    return seen


@pytest.mark.slow
@pytest.mark.parallel
def test_vectors_that_we_write_are_read_by_spark_and_deltalake_and_again_by_us(spark, tmp_path):
    path, size = table(tmp_path / "accounts"), 150_000
    batch = rows([((None, None), 0)])
    many = pa.table(
        {
            name: batch[name].take(pa.array(np.zeros(size, int)))
            for name in batch.column_names
            if name not in ("n", KEY)
        }
    )
    many = many.append_column("n", pa.array(range(size))).append_column(
        KEY, pa.array([bytes(16)] * size, pa.binary())
    )
    dead = [
        np.array([0]), np.arange(70_000), np.array([1, 65_535, 65_536, 131_072, size - 1]), np.arange(0, size, 2),
        np.concatenate([np.arange(5), np.arange(100, 66_000)]),
    ]  # fmt: skip
    files = list(keyed_files._written(many.select(ARROW.names).cast(ARROW), path))
    for n, positions in enumerate(dead):
        marks = deletion_vectors.marks(positions)
        if n == 1:
            marks.run_optimize()  # as Spark writes it
        [vector] = deletion_vectors.write(path, [marks])
        assert (
            deletion_vectors.places(deletion_vectors.read(path, vector)).tolist()
            == positions.tolist()
        )
        stats = json.dumps({"numRecords": size})
        added = files[0].named | {"deletionVector": vector, "stats": stats}
        before = [committer.removal(file) for file in log_state.newest(path).files.values()]
        info = committer._info(n, "{}", {})
        assert committer._create(path, n + 1, [info, *before, {"add": added}])
        living = size - len(positions)
        left = (size - 1) * size // 2 - int(positions.sum())
        engine = QueryBuilder()
        engine.register("t", DeltaTable(str(path)))
        assert pa.table(
            engine.execute("SELECT count(*) AS c, sum(n) AS s FROM t").read_all()
        ).to_pylist() == [{"c": living, "s": left}]
        assert tuple(
            spark.read.format("delta").load(str(path)).selectExpr("count(*)", "sum(n)").head()
        ) == (
            living,
            left,
        )
        assert log_state.rows(path) == living
    file = deletion_vectors.file_of(path, vector)
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        CommitError, match=f"{file.name}: the deletion vector is not what the log says"
    ):
        deletion_vectors.read(path, vector)
    file.unlink()
    with pytest.raises(CommitError, match="the deletion vector is not what the log says"):
        deletion_vectors.read(path, vector)


def test_vectors_that_spark_writes_are_read_by_us(spark, tmp_path):
    path = table(tmp_path / "accounts")
    held = {(f"a{n}", 1): [n] for n in range(100)}
    upsert(path, 0, [(key, n) for key, [n] in held.items()])
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n % 3 = 0")
    assert any("deletionVector" in file for file in log_state.newest(path).files.values()), (
        "Spark marked rows"
    )
    held = {key: numbers for key, numbers in held.items() if numbers[0] % 3}
    assert log_state.rows(path) == len(held)
    assert point_reads.get(path, list(TYPES), "a3", "1") == []
    upsert(path, 1, [(("a4", 1), 400), (("a3", 1), 300)])
    held |= {("a4", 1): [400], ("a3", 1): [300]}
    assert by_deltalake(path) == by_spark(spark, path, delta_log.latest(path)) == as_rows(held)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize("versions", [False, True], ids=["a row for each key", "versions of a key"])
def test_random_steps_give_at_every_version_what_a_dict_holds(
    spark, tmp_path, monkeypatch, fresh_seed, versions
):
    small(monkeypatch)
    chance, path = random.Random(fresh_seed), table(tmp_path / "accounts")
    names: list[Key] = [
        (f"a{n % 120}" if n % 7 else None, n // 120 if n % 11 else None) for n in range(600)
    ]
    held: dict[Key, list[int]] = {}
    at_version: dict[int, Counter] = {}
    for batch in range(110):
        touched = list(dict.fromkeys(chance.choices(names, k=chance.choice([1, 5, 40, 40, 150]))))
        counts = {key: chance.randint(0, 4) if versions else 1 for key in touched}
        new = [(key, 1_000 * batch + n) for key, count in counts.items() for n in range(count)]
        chance.shuffle(new)
        if chance.random() < 0.1:
            keyed_files.forget(path)  # another process goes on
        version = upsert(path, batch, new, touched)
        for key in touched:
            held[key] = [n for of, n in new if of == key]
        at_version[version] = as_rows(held)
    wrong = [
        version
        for version, expected in at_version.items()
        if by_deltalake(path, version) != expected
    ]
    assert not wrong, f"seed {fresh_seed}: versions {wrong} hold something else"
    for version in chance.sample(sorted(at_version), 5):
        assert by_spark(spark, path, version) == at_version[version], (
            f"seed {fresh_seed}, version {version}"
        )
    assert sorted(at_version) == list(range(1, 111)), "one commit a step"
    seen = happened(path)
    assert min(seen[name] for name in ("marked", "gone", "merged", "rewritten")) > 0, (
        f"seed {fresh_seed}: {seen}"
    )
    assert log_state.rows(path) == sum(at_version[110].values())
    assert len(log_state.newest(path).files) < 30
    for key in chance.sample(names, 40):
        asked = [None if part is None else str(part) for part in key]
        found = point_reads.get(path, list(TYPES), *asked)
        assert sorted(row["n"] for row in found) == sorted(held.get(key, [])), (
            f"seed {fresh_seed}, key {key}"
        )
    there = keyed_files.rows_of(path, keys(names[:50]))
    expected = as_rows({key: held.get(key, []) for key in names[:50]})
    assert (
        Counter(zip(*(there[name].to_pylist() for name in ("account", "region", "n")), strict=True))
        == expected
    )


def test_the_commit_is_what_the_rest_of_the_house_reads(tmp_path):
    path = table(tmp_path / "accounts")
    assert delta_log.committed(path, APP) == -1
    upsert(path, 0, [(("a", 1), 1)])
    delta_writer.upsert(
        rows([(("a", 1), 2)]), path, APP, 1, {"inputs": {"x": "näme"}}, keys([("a", 1)])
    )
    assert (
        delta_log.committed(path, APP),
        delta_writer.version_of(path, APP, 1),
        delta_writer.version(path),
    ) == (1, 2, 2)
    assert delta_writer.noted(path, APP, 1) == {"app": APP, "batch": 1, "inputs": {"x": "näme"}}
    changes = delta_log.changes(path, 0)
    assert [(c.version, c.app, c.batch, c.ours, c.by_stream, c.removes) for c in changes] == [
        (1, APP, 0, True, True, False), (2, APP, 1, True, True, True),
    ]  # fmt: skip
    assert len(log_state.newest(path).files) == 1, "a file of which all rows are dead is removed"
    upsert(path, 2, [], [("nobody", 1)])
    assert (delta_log.committed(path, APP), log_state.rows(path)) == (2, 1), (
        "a batch that changes nothing is noted all the same"
    )


def test_a_batch_that_is_committed_is_refused(tmp_path):
    path = table(tmp_path / "accounts")
    upsert(path, 3, [(("a", 1), 1)])
    for batch in (3, 2):
        with pytest.raises(
            CommitError,
            match=f"batch={batch}: {APP} has committed batch 3 already, so another process",
        ):
            upsert(path, batch, [(("a", 1), 2)])
    keyed_files.forget(path)
    with pytest.raises(CommitError, match="has committed batch 3 already"):
        upsert(path, 3, [(("a", 1), 2)])
    assert by_deltalake(path) == {("a", 1, 1): 1}


def test_two_processes_that_write_one_table_exclude_each_other(tmp_path):
    path = table(tmp_path / "accounts")
    code = """
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[3])
        from support.accounts import upsert
        from lakehouse.errors import CommitError
        done = 0
        for batch in range(40):
            try:
                upsert(Path(sys.argv[1]), batch, [((f"a{n}", 1), batch) for n in range(batch % 7, 40)])
                done += 1
            except CommitError as err:
                assert "has committed batch" in str(err)
        print(done)
    """
    asked = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(path)]
    both = [
        subprocess.Popen([*asked, name, str(TESTS)], stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    done = [int(process.communicate(timeout=200)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0] and sum(done) == 40, done
    assert delta_log.latest(path) == 40
    expected = Counter((f"a{n}", 1, max(b for b in range(40) if b % 7 <= n)) for n in range(40))
    assert by_deltalake(path) == expected


def test_a_writer_goes_on_behind_what_others_committed(tmp_path):
    path = table(tmp_path / "accounts")
    upsert(path, 0, [((f"a{n}", 1), n) for n in range(50)])
    DeltaTable(str(path)).update({"n": "7"}, predicate="account = 'a7'")
    DeltaTable(str(path)).delete("account = 'a8'")
    DeltaTable(str(path)).vacuum(1, dry_run=False, enforce_retention_duration=False)
    upsert(path, 1, [(("a7", 1), 70), (("a9", 1), 90)])
    held = {(f"a{n}", 1): [n] for n in range(50) if n != 8} | {("a7", 1): [70], ("a9", 1): [90]}
    assert by_deltalake(path) == as_rows(held)
    DeltaTable(str(path)).restore(1)
    upsert(path, 2, [(("a8", 1), 80)])
    held = {(f"a{n}", 1): [n] for n in range(50)} | {("a8", 1): [80]}
    assert by_deltalake(path) == as_rows(held)
    DeltaTable(str(path)).optimize.compact()
    upsert(path, 3, [(("a8", 1), 81)])
    assert by_deltalake(path) == as_rows(held | {("a8", 1): [81]})


def test_what_an_index_knows_is_dropped_when_the_log_is_another_one(tmp_path):
    path = table(tmp_path / "accounts")
    upsert(path, 0, [((f"a{n}", 1), n) for n in range(5)])
    upsert(path, 1, [(("a1", 1), 10)])
    kept = path.rename(tmp_path / "before")
    table(path)
    upsert(path, 0, [(("b", 1), 1)])
    upsert(path, 1, [(("b", 1), 2), (("c", 1), 3)])
    assert by_deltalake(path) == {("b", 1, 2): 1, ("c", 1, 3): 1}
    assert log_state.rows(kept) == 5


def test_a_checkpoint_of_the_log_has_all_that_is_needed(spark, tmp_path):
    path = table(tmp_path / "accounts")
    for batch in range(60):
        upsert(path, batch, [((f"a{n}", 1), batch) for n in range(batch % 5, 40, 1 + batch % 3)])
    assert (path / "_delta_log" / f"{50:020}.checkpoint.parquet").exists()
    before = by_deltalake(path)
    for version in range(50):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    keyed_files.forget(path)
    assert by_deltalake(path) == by_spark(spark, path, 60) == before
    with pytest.raises(CommitError, match="has committed batch 59 already"):
        upsert(path, 59, [(("a1", 1), 0)])
    upsert(path, 60, [(("a1", 1), 600)])
    assert by_deltalake(path)["a1", 1, 600] == 1 and sum(by_deltalake(path).values()) == 40
    (path / "_delta_log" / f"{55:020}.json").unlink()
    with pytest.raises(
        CommitError, match="version=55: its log lacks this commit, and has later ones"
    ):
        log_state.newest(path)


def test_maintenance_leaves_every_kept_version_readable(spark, tmp_path, monkeypatch):
    small(monkeypatch)
    path, held, at_version = table(tmp_path / "accounts"), {}, {}
    chance, now = random.Random(4), committer.now
    for batch in range(130):
        days = 30 if batch <= 60 else 10 if batch <= 110 else 0
        monkeypatch.setattr(committer, "now", lambda days=days: now() - 1_000 * days * DAY)
        touched = list(dict.fromkeys((f"a{chance.randrange(300)}", 1) for _ in range(30)))
        version = upsert(path, batch, [(key, batch) for key in touched])
        held |= {key: [batch] for key in touched}
        at_version[version] = as_rows(held)
        if batch in (60, 110):
            for file in path.rglob("*"):
                os.utime(file, times=(file.stat().st_mtime - {60: 20, 110: 10}[batch] * DAY,) * 2)
    place = retention.Place("accounts", path, lambda _: False, {})
    settings = Settings(root=tmp_path, history="7 days", versions=40)
    planned = retention.plan(settings, place)
    files = {file.name for file in path.iterdir()}
    found = retention.maintain(settings, place)
    gone = files - {file.name for file in path.iterdir()}
    assert (found.oldest, found.obsolete, found.partitions) == (
        100,
        len(gone),
        (),
    ) and planned == found, "a plan says it before"
    kinds = Counter(Path(name).suffix for name in gone)
    assert kinds[".bin"] > 20 and kinds[".parquet"] > 5, kinds
    assert delta_log.oldest(path) == 100
    wrong = [
        version for version in range(100, 131) if by_deltalake(path, version) != at_version[version]
    ]
    assert not wrong
    assert by_spark(spark, path, 130) == at_version[130]
    assert retention.maintain(settings, place).obsolete == 0
    upsert(path, 130, [(("a1", 1), 1_000)])
    assert by_deltalake(path) == as_rows(held | {("a1", 1): [1_000]})


def test_a_table_written_by_spark_is_in_order_and_in_files_of_one_size(spark, tmp_path):
    path = table(tmp_path / "accounts")
    upsert(path, 0, [(("old", 1), 1)])
    made = spark.range(3_000).selectExpr(
        "cast(id AS string) AS account",
        "1 AS region",
        "id AS n",
        "now() AS at",
        "cast(1 AS decimal(9,2)) AS price",
    )
    made = row_keys.keyed(made, ["account", "region"])
    delta_writer.swap(made, path, APP, 1, {"inputs": {}}, 3, ["account", "region"])
    index = key_index.read(path)
    assert len(index.files) == 3 and all(500 < len(file.keys) < 1_500 for file in index)
    assert all(file.keys.order is None for file in index), "sorted by their keys"
    assert not list(path.glob("_staged*"))
    assert sum(by_deltalake(path).values()) == 3_000 and by_deltalake(path)["17", 1, 17] == 1
    upsert(path, 2, [(("17", 1), -1)])
    assert [row["n"] for row in point_reads.get(path, list(TYPES), "17", "1")] == [-1]
    with pytest.raises(CommitError, match="has committed batch 2 already"):
        delta_writer.swap(made, path, APP, 2, {"inputs": {}}, 1, ["account", "region"])
    delta_writer.swap(made.limit(0), path, APP, 3, {"inputs": {}}, 1, ["account", "region"])
    assert by_deltalake(path) == {} and log_state.rows(path) == 0
    assert by_spark(spark, path, 2)["old", 1, 1] == 0 and by_spark(spark, path, 1) == {
        ("old", 1, 1): 1
    }


def test_row_groups_are_small_whoever_writes_them(spark, tmp_path):
    path = table(tmp_path / "accounts")
    made = spark.range(20_000).selectExpr(
        "cast(id AS string) AS account",
        "1 AS region",
        "id AS n",
        "now() AS at",
        "cast(1 AS decimal(9,2)) AS price",
    )
    delta_writer.swap(
        row_keys.keyed(made, ["account", "region"]),
        path,
        APP,
        0,
        {"inputs": {}},
        1,
        ["account", "region"],
    )
    [file] = [pq.read_metadata(path / name) for name in log_state.newest(path).files]
    assert {file.row_group(n).num_rows for n in range(file.num_row_groups - 1)} == {
        keyed_files.GROUP
    }


def test_a_key_is_the_same_computed_by_spark_and_from_text(spark):
    kinds = {
        "string": ["", "x", "näme", "n", "v1:x"], "int": ["0", "-7"], "bigint": ["9223372036854775807"], "smallint": ["3"],
        "boolean": ["true", "false"], "date": ["2026-03-29"], "decimal(9,2)": ["1.50", "-0.01", "1000000.00"],
        "decimal(38,18)": ["0.000000000000000001", "0"],
        "timestamp": ["2026-03-29 01:30:00", "2026-03-29 01:30:00.123456", "2026-03-29 01:30:00.1"],
        "timestamp_ntz": ["2026-03-29 01:30:00.000001"],
    }  # fmt: skip
    for kind, values in kinds.items():
        stored = spark.createDataFrame(
            [(value,) for value in [*values, None]], "text string"
        ).selectExpr("text", f"cast(text AS {kind}) AS k")
        delta = {"int": "integer", "bigint": "long", "smallint": "short"}.get(kind, kind)
        for row in row_keys.keyed(stored, ["k"]).collect():
            assert bytes(row[KEY]) == of_text("t", {"k": delta}, [row.text]), (kind, row.text)
    pairs = spark.createDataFrame(
        [("a", "b"), ("ab", None), (None, "ab"), ("a:1", "b"), ("", "ab"), (None, None)],
        "x string, y string",
    )
    found = row_keys.keyed(pairs, ["x", "y"]).collect()
    assert len({bytes(row[KEY]) for row in found}) == 6
    assert all(
        bytes(row[KEY]) == of_text("t", {"x": "string", "y": "string"}, [row.x, row.y])
        for row in found
    )
    zeros = spark.createDataFrame([(0.0,), (-0.0,)], "d double")
    within = zeros.selectExpr(
        "d", "array(d, 1.5D, NULL) AS a", "named_struct('x', named_struct('y', d, 'z', 1)) AS s",
        "array(map('k', array(float(d)))) AS m", "IF(d = 1, named_struct('y', d), NULL) AS n",
    )  # fmt: skip
    of_each = (row_keys.column(within.schema, [name]).alias(name) for name in within.columns)
    assert within.select(*of_each).distinct().count() == 1, "as they group"
    assert within.groupBy(*within.columns).count().count() == 1
    text = F.to_json(F.struct("a"))
    shown, key = (
        row_keys.keyed(within, ["a"]).where("cast(d AS string) = '0.0'").select(text, KEY).head()
    )
    assert shown == '{"a":[0.0,1.5,null]}'
    assert bytes(key) == hashlib.sha256(f"v{len(shown)}:{shown}".encode()).digest()[:16]
    for kind, value, why in (
        ("integer", "x", "the column is a integer; write the value"), ("double", "1.5", "is not found by its text"),
        ("boolean", "1", "write true or false"), ("date", "tomorrow", "the column is a date"), ("decimal(9,2)", "y", "decimal"),
    ):  # fmt: skip
        with pytest.raises(RangeError, match=why):
            of_text("t", {"k": kind}, [value])


def test_nested_values_differ_where_an_instant_differs_by_a_microsecond(spark):
    instants = (
        "2026-01-01 00:00:00.001",
        "2026-01-01 00:00:00.001001",
        "2026-01-01 00:00:00.001002",
    )
    shown = [
        f"SELECT struct(timestamp'{at}' AS at) AS s, array(timestamp_ntz'{at}') AS a"
        for at in instants
    ]
    found = [spark.sql(each) for each in shown]
    for name in ("s", "a"):
        seen = [each.select(row_keys.column(each.schema, [name])).head()[0] for each in found]
        assert len({bytes(key) for key in seen}) == 3, name
        assert len({str(digest(each.select(name))) for each in found}) == 3, name
    # one of whole milliseconds is found as it always was
    before = F.concat(F.lit("v"), F.octet_length("text").cast("string"), F.lit(":"), F.col("text"))
    [first] = found[0].select(F.to_json(F.struct("s")).alias("text")).select(before).head()
    assert hashlib.sha256(first.encode()).digest()[:16] == bytes(
        found[0].select(row_keys.column(found[0].schema, ["s"])).head()[0]
    )


def test_a_reader_that_stays_follows_other_keys_and_columns(spark, tmp_path):
    path = table(tmp_path / "accounts")
    upsert(path, 0, [(("a", 1), 1)])
    assert [row["n"] for row in point_reads.get(path, list(TYPES), "a", "1")] == [1]
    stored = DeltaTable(path)
    stored.alter.add_columns(Field("more", PrimitiveType("string")))
    stored.alter.set_table_properties({table_creation.FOUND_BY: '["account"]'}, False)
    assert point_reads.get(path, list(TYPES), "a") == [], "rows were written by the keys of before"
    with pytest.raises(RangeError):
        point_reads.get(path, list(TYPES), "a", "1")


def test_a_point_read_says_what_it_cannot_find(spark, tmp_path):
    path = table(tmp_path / "accounts")
    assert point_reads.get(path, list(TYPES), "a", "1") == []
    upsert(path, 0, [(("a", 1), 1), ((None, 1), 2)])
    assert [row["n"] for row in point_reads.get(path, list(TYPES), None, "1")] == [2]
    [row] = point_reads.get(path, list(TYPES), "a", "1")
    assert row == {
        "account": "a",
        "region": 1,
        "n": 1,
        "at": AT,
        "price": Decimal("1.00"),
    }
    with pytest.raises(
        RangeError, match="values=1: its key is account, region; give a value for each"
    ):
        point_reads.get(path, list(TYPES), "a")
    other = tmp_path / "other"
    table_creation.create(other, StructType.fromDDL("a string"), False, "")
    with pytest.raises(RangeError, match="table=other: it has no key"):
        point_reads.get(other, ["a"], "x")


def test_a_table_made_again_is_read_with_its_new_columns(spark, tmp_path):
    path = table(tmp_path / "accounts")
    upsert(path, 0, [(("a", 1), 1)])
    assert [row["n"] for row in point_reads.get(path, list(TYPES), "a", "1")] == [1]
    shutil.rmtree(path)
    columns = StructType.fromDDL("city STRING, _key BINARY")
    table_creation.create(path, columns, False, "", table_creation.KEYED)
    assert point_reads.get(path, ["city"], "Oslo") == []
    with pytest.raises(RangeError, match="its key is city"):
        point_reads.get(path, ["city"], "a", "1")


def test_point_reads_on_the_command_line(stage_of, monkeypatch):
    stage = stage_of(payments)
    payments.pay(stage, payments.paid(0, "a", "b", "2.50"))
    payments.move(stage, payments.moved(0, "a", "Oslo"), payments.moved(20, "a", "Bergen"))
    stage.run("balances", "cities")
    payments.pay(stage, payments.paid(1, "a", "c", "1.00"))
    stage.run("balances", "cities")
    monkeypatch.setenv("LAKEHOUSE_ROOT", str(stage.session.settings.root))
    monkeypatch.setenv("LAKEHOUSE_TABLES", payments.__name__)

    def said(*given: str):
        return CliRunner().invoke(command_line(), ["table", "get", *given])

    def records(*given: str) -> list[dict]:
        return [json.loads(line) for line in said(*given, "--json").stdout.splitlines()]

    [balance] = records("balances", "a")
    assert balance == {"person": "a", "balance": "-3.50", "payments": 2}
    assert [row["city"] for row in records("cities", "a")] == ["Oslo", "Bergen"]
    assert "-3.50" in said("balances", "a").stdout and "_key" not in said("balances", "a").stdout
    for given, why in (
        (("balances", "nobody"), "person=nobody: no row has this key now"), (("balances", "a", "b"), "its key is person"),
        (("happened", "a"), "table=happened: it has no key"), (("balence", "a"), "balence"),
    ):  # fmt: skip
        refused = said(*given)
        assert refused.exit_code == 2 and why in " ".join(refused.stderr.split()), (
            given,
            refused.stderr,
        )


def test_columns_of_all_types_are_merged_whoever_wrote_them(spark, tmp_path, monkeypatch):
    # each step reads what the steps before have written
    monkeypatch.setattr(keyed_files, "_MANY", 1)
    stored = row_keys.keyed(
        spark.createDataFrame([wide_rows.values(n) for n in range(4)], wide_rows.WIDE), ["n"]
    )
    path = tmp_path / "wide"
    table_creation.create(path, stored.schema, False, "", table_creation.KEYED)
    delta_writer.swap(stored, path, APP, 0, {"inputs": {}}, 1, ["n"])
    none = spark.createDataFrame([(None,) * 17 + ("stream", None)], wide_rows.WIDE)
    for batch, new in enumerate(
        (
            spark.createDataFrame([wide_rows.values(2), wide_rows.values(9)], wide_rows.WIDE),
            none,
            none,
        ),
        1,
    ):
        added = row_keys.keyed(new, ["n"]).toArrow()
        delta_writer.upsert(added, path, APP, batch, {"inputs": {}}, added[KEY])
    expected = spark.createDataFrame(
        [*(wide_rows.values(n) for n in (0, 1, 2, 3, 9)), (None,) * 17 + ("stream", None)],
        wide_rows.WIDE,
    )
    found = spark.read.format("delta").load(str(path)).drop(KEY)
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))
    assert len(log_state.newest(path).files) == 1
    there = keyed_files.rows_of(path, added[KEY])
    assert there.num_rows == 1 and there["n"].null_count == 1


@pytest.mark.parallel
def test_who_reads_a_state_sees_nothing_of_how_it_is_kept(spark, tmp_path):
    def rich(balances):
        return balances.where("balance > 1")

    rich.__module__, made = "made", ModuleType("made")
    for name in ("happened", "payment_topic", "person_topic", "balances"):
        setattr(made, name, getattr(payments, name))
    made.rich = reference_table(layer="gold")(rich)
    stage = Stage(spark, tmp_path, made)
    payments.pay(stage, payments.paid(0, "a", "b", "2.50"))
    stage.run("balances")
    reference_tables.rebuild(stage.session, stage.session.catalog.table("rich"))
    assert [row.asDict() for row in stage.rows("rich").collect()] == [
        {"person": "b", "balance": Decimal("2.50"), "payments": 1}
    ]


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parallel
def test_a_table_of_an_earlier_version_goes_on_with_all_its_rows(stage_of):
    stage = stage_of(payments)
    payments.pay(stage, payments.paid(0, "a", "b", "2.50"))
    stage.run("balances")
    keyed = stage.session.catalog.table("balances")
    path = stage.session.path(keyed)
    stored = stage.rows("balances").drop(KEY).coalesce(1)
    told, arrow = delta_writer.noted(path, f"{keyed.name}:stream:1", 0), stored.toArrow()
    path.rename(path.with_name("with keys"))
    table_creation.create(path, stored.schema, False, "")
    delta_writer.append(arrow, path, f"{keyed.name}:stream:1", 0, told)
    keyed_files.forget(path)
    creation.create(stage.session, keyed)
    payments.pay(stage, payments.paid(1, "a", "c", "1.00"))
    stage.run("balances")
    assert payments.balances_of(stage) == {
        "a": (Decimal("-3.50"), 2),
        "b": (Decimal("2.50"), 1),
        "c": (Decimal("1.00"), 1),
    }
    assert keyed_files.can_upsert(path), "it was written whole, with keys"
    payments.pay(stage, payments.paid(2, "a", "c", "1.00"))
    stage.run("balances")
    assert (
        any("deletionVector" in file for file in log_state.newest(path).files.values())
        or len(log_state.newest(path).files) > 1
    )
    assert_stream_equals_batch(stage, "balances")
