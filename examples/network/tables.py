"""A network: the quality of its radio cells in ten seconds, a minute and an hour, and addresses that try to break in."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import (
    around,
    expect,
    files,
    ingest_table,
    kafka,
    kafka_topic,
    reference_table,
    row_table,
    tumbling,
    webhook,
    window_table,
)

_OWNER = "team:network"
_DELAY = "5 seconds"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"

measurement_topic = kafka(
    "cell-measurements",
    schema="""
        cell_id STRING NOT NULL, event_time TIMESTAMP NOT NULL, attempts INT NOT NULL, failures INT NOT NULL,
        sinr_db DECIMAL(5,1) NOT NULL
    """,
)
request_topic = kafka(
    "gateway-requests",
    schema="address STRING NOT NULL, event_time TIMESTAMP NOT NULL, path STRING, status INT NOT NULL",
)
bad_network_list = files("bad_networks.csv", schema="network STRING, reason STRING")


# ---- the quality of cells


@ingest_table(
    layer="bronze",
    event_time="event_time",
    delay=_DELAY,
    owner=_OWNER,
    expectations=[
        expect.column_pair_values_a_to_be_greater_than_b(
            column_A="attempts", column_B="failures", or_equal=True
        ),
        expect.column_values_to_be_between("failures", min_value=0),
        expect.column_values_to_be_between("sinr_db", min_value=-30, max_value=60),
    ],
)
def cell_measurements(measurement_topic: DataFrame) -> DataFrame:
    """What cells report: connections that were tried and that failed, and the signal above noise and interference."""
    return measurement_topic


@window_table(layer="silver", window=tumbling("10 seconds"), keys=["cell_id"], owner=_OWNER)
def cell_ten_seconds(cell_measurements: DataFrame) -> DataFrame:
    """Each cell in ten seconds, as sums: the averages of longer windows are made of these."""
    return cell_measurements.groupBy("window", "cell_id").agg(
        F.count("*").alias("measurements"),
        F.sum("attempts").alias("attempts"),
        F.sum("failures").alias("failures"),
        F.sum("sinr_db").alias("sinr_sum"),
    )


@window_table(
    layer="silver",
    window=tumbling("1 minute"),
    keys=["cell_id"],
    owner=_OWNER,
    metrics=["failure_rate", "sinr_db"],
    expectations=[expect.column_values_to_be_between("failure_rate", min_value=0, max_value=1)],
)
def cell_minutes(cell_ten_seconds: DataFrame) -> DataFrame:
    """Each cell in a minute. It is bad if one in twenty connections failed, or the signal was weaker than what disturbs it."""
    minutes = cell_ten_seconds.groupBy("window", "cell_id").agg(
        F.sum("measurements").alias("measurements"),
        F.sum("attempts").alias("attempts"),
        F.sum("failures").alias("failures"),
        (F.sum("sinr_sum") / F.sum("measurements")).cast("decimal(5,2)").alias("sinr_db"),
    )
    rate = F.try_divide(F.col("failures").cast("decimal(18,0)"), F.col("attempts"))
    rated = minutes.withColumn("failure_rate", F.coalesce(rate, F.lit(0)).cast("decimal(5,4)"))
    return rated.withColumn("bad", F.expr("failure_rate >= 0.05 OR sinr_db < 0"))


@window_table(layer="gold", window=tumbling("1 hour"), keys=["cell_id"], owner=_OWNER)
def cell_hours(cell_minutes: DataFrame) -> DataFrame:
    """Each cell in an hour: how many of its minutes were bad, and its worst one."""
    return cell_minutes.groupBy("window", "cell_id").agg(
        F.count("*").alias("minutes"),
        F.count_if("bad").alias("bad_minutes"),
        F.sum("attempts").alias("attempts"),
        F.sum("failures").alias("failures"),
        F.max("failure_rate").alias("worst_failure_rate"),
        F.min("sinr_db").alias("worst_sinr_db"),
    )


@row_table(
    layer="gold",
    context=around(before="5 minutes"),
    owner=_OWNER,
    publish=[
        kafka_topic(
            "cell-alerts", key=["cell_id", "window_time"], order_by="cell_id", partitions=3
        ),
    ],
)
def cell_alerts(cell_minutes: DataFrame) -> DataFrame:
    """The minute with which three of the last five of a cell are bad. A cell that stays bad gives one alert."""
    of_cell = Window.partitionBy("cell_id").orderBy(F.unix_seconds("window.end"))

    def bad_minutes(until: int) -> Column:
        """Bad ones of the five minutes up to that many seconds after this one."""
        return F.count_if("bad").over(of_cell.rangeBetween(until - 240, until))

    minutes = cell_minutes.withColumns({"bad_minutes": bad_minutes(0), "before": bad_minutes(-60)})
    alerts = minutes.where("bad_minutes >= 3 AND before < 3")
    return alerts.select(
        "cell_id", "window_time", "bad_minutes", "failure_rate", "sinr_db", "_arrival"
    )


# ---- who tries to break in


@ingest_table(layer="bronze", event_time="event_time", delay=_DELAY, owner=_OWNER)
def gateway_requests(request_topic: DataFrame) -> DataFrame:
    """Every request at the gateway, and how it was answered."""
    return request_topic


@reference_table(
    layer="bronze",
    keys=["network"],
    refresh="1 minute",
    owner=_OWNER,
    expectations=[
        expect.column_values_to_match_regex("network", regex=rf"^{_IPV4}/(3[0-2]|[12]?\d)$"),
    ],
)
def bad_networks(bad_network_list: DataFrame) -> DataFrame:
    """Networks that are known to be bad, with their first and last address as numbers. A changed file is taken up in a minute."""
    parts = F.split("network", "/")
    base, bits = _as_number(parts[0]), parts[1].cast("int")
    size = F.pow(2, 32 - bits).cast("bigint")
    first = base - base % size
    return bad_network_list.withColumns({"size": size, "first": first, "last": first + size - 1})


@row_table(layer="silver", owner=_OWNER)
def refused_requests(gateway_requests: DataFrame, bad_networks: DataFrame) -> DataFrame:
    """Requests without a right to what they asked for. Of several known bad networks that have the address: the smallest."""
    # as one array, for a join by ranges would give a request once for each network that has it
    listed = F.struct("size", "first", "last", "network", "reason")
    networks = bad_networks.agg(F.sort_array(F.collect_list(listed)).alias("networks"))
    number = _as_number(F.col("address"))
    found = F.filter("networks", lambda each: number.between(each["first"], each["last"]))
    refused = gateway_requests.where("status IN (401, 403)").crossJoin(F.broadcast(networks))
    known = refused.withColumn("known", F.get(found, F.lit(0)))
    return known.select(
        "address", "path", "status", "event_time", "known.network", "known.reason", "_arrival"
    )


@window_table(
    layer="gold",
    window=tumbling("1 minute"),
    keys=["address"],
    owner=_OWNER,
    publish=[
        webhook("intrusions", "http://${FIREWALL}/intrusions", key=["address", "window"]),
    ],
)
def intrusions(refused_requests: DataFrame) -> DataFrame:
    """Addresses that were refused too often in a minute: five times in a known bad network, thirty times anywhere else."""
    addresses = refused_requests.groupBy("window", "address").agg(
        F.count("*").alias("refused"),
        F.max("network").alias("network"),
        F.max("reason").alias("reason"),
    )
    return addresses.where("refused >= if(network IS NULL, 30, 5)")


def _as_number(address: Column) -> Column:
    """An IPv4 address as a number; null for anything else."""
    octets = F.split(address, r"\.")
    number = F.aggregate(
        octets, F.lit(0).cast("bigint"), lambda total, octet: total * 256 + octet.try_cast("bigint")
    )
    return F.when(address.rlike(f"^{_IPV4}$"), number)
