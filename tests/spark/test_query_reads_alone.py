"""`lakehouse query`: it reads tables of this lakehouse, and no SQL makes it do something else."""

import os
from pathlib import Path

import pytest

from lakehouse.cli import query
from lakehouse.errors import QueryError, UnknownTable
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import load
from lakehouse.storage.session import Session

TABLES = ("lakehouse.examples.sensors.tables",)
JAVA = "java_method('java.lang.System', 'setProperty', 'h.called', 'yes')"
BEYOND = [
    "SELECT TRANSFORM(sensor_id) USING 'touch {mark}' AS (x) FROM sensor_readings",
    "SELECT * FROM (SELECT TRANSFORM(sensor_id) USING 'touch {mark}' AS (x) FROM sensor_readings)",
    "SELECT * FROM text.`/etc/hostname`",
    "SELECT * FROM csv.`/etc/hostname`",
    "SELECT * FROM json.`/etc/hostname`",
    "SELECT * FROM binaryFile.`/etc/hostname`",
    "SELECT * FROM delta.`{root}/bronze/sensor_readings`",
    "SELECT (SELECT max(value) FROM text.`/etc/hostname`)",
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM text.`/etc/hostname`)",
    "SELECT 1 IN (SELECT 1 FROM text.`/etc/hostname`)",
    "WITH t AS (SELECT * FROM text.`/etc/hostname`) SELECT * FROM t",
    "WITH t AS (WITH u AS (SELECT * FROM text.`/etc/hostname`) SELECT * FROM u) SELECT * FROM t",
    "SELECT * FROM sensor_readings JOIN LATERAL (SELECT * FROM text.`/etc/hostname`)",
    "SELECT * FROM IDENTIFIER('text.' || '`/etc/hostname`')",
    f"SELECT {JAVA}",
    f"SELECT /* nothing */ {JAVA}",
    f"SELECT {JAVA.replace('java_method', 'JAVA_METHOD')}",
    f"SELECT {JAVA.replace('java_method', 'reflect')}",
    f"SELECT {JAVA.replace('java_method', 'try_reflect')}",
    f"SELECT {JAVA.replace('java_method', 'system.builtin.reflect')}",
    f"SELECT {JAVA.replace('java_method', 'builtin.`reflect`')}",
    f"SELECT {JAVA.replace('java_method', chr(96) + 'reflect' + chr(96))}",
    f"SELECT IDENTIFIER('java_method'){JAVA.removeprefix('java_method')}",
    f"SELECT transform(array(1), x -> {JAVA})",
    f"SELECT count(*) FILTER (WHERE {JAVA} IS NULL) FROM sensor_readings",
    f"SELECT max({JAVA}) OVER () FROM sensor_readings",
    f"SELECT * FROM VALUES ({JAVA}) AS v(a)",
    f"VALUES ({JAVA})",
    f"SELECT * FROM explode(array({JAVA}))",
    f"SELECT * FROM sensor_readings LATERAL VIEW explode(array({JAVA})) e",
    f"SELECT 1 GROUP BY 1 HAVING {JAVA} IS NULL",
    f"SELECT 1 ORDER BY {JAVA}",
    f"SELECT 1 LIMIT length({JAVA})",
    f"WITH t AS (SELECT 1 AS a) SELECT a, {JAVA} FROM t",
    f"SELECT * FROM (SELECT 1 AS a) PIVOT (max({JAVA}) FOR a IN (1))",
    f"SELECT 1 AS a WHERE (SELECT {JAVA}) IS NULL",
    f"SELECT max(1) OVER w FROM sensor_readings WINDOW w AS (ORDER BY {JAVA})",
    f"SELECT max(1) OVER w FROM sensor_readings WINDOW w AS (ORDER BY (SELECT {JAVA}))",
    f"SELECT 1 GROUP BY GROUPING SETS (({JAVA}), ())",
    f"SELECT 1 AS a |> EXTEND {JAVA} AS b",
    f"SELECT listagg('a') WITHIN GROUP (ORDER BY {JAVA})",
    f"SELECT /*+ REPARTITION(3, {JAVA}) */ 1",
    "SELECT * FROM (FROM sensor_readings MAP sensor_id USING 'touch {mark}' AS (x))",
    "SELECT * FROM (TABLE text.`/etc/hostname`)",
    "SELECT * FROM explode(TABLE(text.`/etc/hostname`))",
    "SELECT max(1) OVER w FROM sensor_readings WINDOW w AS (ORDER BY (SELECT max(value) FROM text.`/etc/hostname`))",
    "SELECT * FROM spark_catalog.default.sensor_readings",
    "SELECT * FROM STREAM sensor_readings",
    "SELECT * FROM table_changes_by_path('{root}/bronze/sensor_readings', 0)",
    "SELECT from_protobuf(cast('a' AS BINARY), 'M', '/etc/hostname')",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/hostname'))",
    "SELECT * FROM read_files('/etc/hostname')",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM sensor_readings VERSION AS OF 0",
    "WITH t AS (SELECT 1) INSERT OVERWRITE DIRECTORY '{mark}' USING csv SELECT * FROM t",
    "WITH t AS (SELECT 1 AS a) FROM t INSERT OVERWRITE DIRECTORY '{mark}' USING csv SELECT a",
    "SELECT 1) ; SELECT * FROM (SELECT 2",
    "ADD JAR '/tmp/x.jar'",
    "SET spark.sql.shuffle.partitions=1",
    "CREATE TABLE t USING csv LOCATION '/etc'",
    "CREATE TEMPORARY VIEW v USING text OPTIONS (path '/etc/hostname')",
    "DESCRIBE sensor_readings",
    "EXPLAIN SELECT 1",
    "BEGIN SELECT 1; END",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "(INSERT INTO sensor_readings SELECT * FROM sensor_readings)",
]
VARIABLES = [
    "SELECT '${{env:HOME}}'",
    "SELECT '${{system:user.home}}'",
    "SELECT '${{spark.driver.host}}'",
    "SELECT 1 -- ${{env:HOME}}",
]
WITHIN = [
    "SELECT count(*) AS n FROM sensor_readings",
    "WITH t AS (SELECT * FROM sensor_readings), u AS (SELECT * FROM t) SELECT count(*) FROM u a JOIN u b USING (sensor_id)",
    "SELECT sensor_id, max(temperature_f) OVER (PARTITION BY sensor_id) FROM sensor_readings ORDER BY 1 LIMIT 1",
    "SELECT sensor_id FROM sensor_readings WHERE sensor_id IN (SELECT sensor_id FROM sensor_readings) GROUP BY ALL",
    "SELECT sensor_id FROM sensor_readings GROUP BY sensor_id HAVING count(*) > 0",
    "SELECT * FROM (VALUES (1, 'a'), (2, upper('b'))) AS v(n, s) UNION ALL SELECT 3, md5('c') EXCEPT SELECT 1, 'a'",
    "SELECT k FROM (SELECT explode(array(1, 2)) AS k) LATERAL VIEW explode(sequence(1, 2)) e AS m",
    "SELECT from_json('{{\"a\":1}}', 'a INT').a, CASE WHEN true THEN 1 END, DATE '2026-01-01', extract(year FROM current_date)",
    "SELECT transform(array(1), x -> x + 1), map(1, 2)[1], count(DISTINCT 1), cast(1 AS STRING), trim(BOTH 'x' FROM 'y')",
    "SELECT * FROM sensor_readings TABLESAMPLE (50 PERCENT) REPEATABLE (1)",
    "SELECT * FROM (SELECT 1 AS a, 2 AS b) PIVOT (sum(b) FOR a IN (1))",
    "SELECT * FROM (SELECT 1 AS a, 2 AS b) UNPIVOT (v FOR k IN (a, b))",
    "SELECT * FROM sensor_readings__quarantine a LEFT ANTI JOIN sensor_readings b ON a.reason = b.sensor_id",
    "SELECT /*+ BROADCAST(b) */ count(*) FROM sensor_readings a JOIN LATERAL (SELECT a.sensor_id) b",
    "VALUES (1)",
    "VALUES (current_date, now())",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
    "SELECT sensor_id, row_number() OVER w AS n FROM sensor_readings WINDOW w AS (PARTITION BY sensor_id ORDER BY event_time)",
    "SELECT window(event_time, '1 minute').start AS minute, count(*) FROM sensor_readings GROUP BY 1 LIMIT ALL",
    "SELECT session_window(event_time, '1 minute'), count(*) FROM sensor_readings GROUP BY 1",
    "SELECT 1 AS a |> EXTEND 2 AS b |> SET b = 3 |> AGGREGATE sum(b) AS s GROUP BY a |> ORDER BY s |> LIMIT 1",
    "SELECT grouping_id(), percentile_cont(0.5) WITHIN GROUP (ORDER BY 1) FROM sensor_readings GROUP BY CUBE (sensor_id)",
    "SELECT e.* FROM sensor_readings a, LATERAL explode(array(1)) e CLUSTER BY 1",
    "SELECT current_user, user(), current_database(), assert_true(true), hex(aes_encrypt('a', '0000111122223333'))",
    "SELECT * FROM sensor_trends__late",
    "SELECT count(*) FROM _commits",
    "SELECT '$', '${{', '}}'",
]  # fmt: skip


def in_spark(session: Session, sql: str) -> query.Answer:
    return query.select_in_spark(session, sql, 10, "", query.as_answer)


def test_spark_reads_tables_and_does_nothing_else(filled: Path, spark, tmp_path: Path):
    mark = tmp_path / "mark"
    session = Session.on(load(Settings(root=filled, tables=TABLES)), spark)
    system = spark._jvm.java.lang.System
    taken = []
    for sql in [*BEYOND, *VARIABLES]:
        try:
            in_spark(session, sql.format(mark=mark, root=filled))
            taken.append(sql)
        except QueryError as err:
            assert "UNRESOLVED_COLUMN" not in str(err), err  # another fault would prove nothing
        if mark.exists() or system.getProperty("h.called"):
            taken.append(f"done: {sql}")
            system.clearProperty("h.called")
    assert not taken
    for sql in WITHIN:
        assert in_spark(session, sql.replace("{{", "{").replace("}}", "}")).columns, sql


@pytest.mark.parametrize(
    "sql",
    [
        *(sql for sql in BEYOND if "java" not in sql.lower() and "reflect" not in sql),
        "SELECT * FROM '/etc/hostname'",
        'SELECT * FROM "/etc/hostname"',
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM delta_scan('/tmp')",
        "SELECT * INTO y FROM sensor_readings",
        "SELECT 1; COPY (SELECT 1) TO '{mark}'",
        "WITH t AS (SELECT 1) COPY t TO '{mark}'",
        "WITH t AS (INSERT INTO sensor_readings VALUES (9) RETURNING a) SELECT * FROM t",
        "WITH t AS (SELECT 1) DELETE FROM sensor_readings",
        "SELECT * FROM information_schema.tables",
        "SELECT getenv('HOME')",
    ],
)
def test_without_spark_it_reads_tables_and_does_nothing_else(
    filled: Path, tmp_path: Path, sql: str
):
    lakehouse = load(Settings(root=filled, tables=TABLES))
    mark = tmp_path / "mark"
    with pytest.raises((QueryError, UnknownTable)) as raised:
        query.run(lakehouse, sql.format(mark=mark, root=filled), 10)
    assert str(raised.value) and not mark.exists()
    assert os.listdir(tmp_path) == []
