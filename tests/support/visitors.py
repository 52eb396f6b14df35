"""Tables with a process function whose state lasts.

A module of its own, because Spark's Python workers import it.
"""

from datetime import timedelta

from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka, row_table
from lakehouse.transform.functions.process import (
    KeyedProcess,
    OutputTag,
    main_output,
    process,
    side_output,
)

HOUR = timedelta(hours=1)
TTL = timedelta(hours=3)

visit_topic = kafka("visits", schema="user STRING, at TIMESTAMP, page STRING")


AWAY = OutputTag("away", "user STRING, at TIMESTAMP, n BIGINT, pages STRING")


class Visits(KeyedProcess):
    """Each visit with its number and the pages before it; and, by a timer, an hour and a half without one."""

    output = "user STRING, at TIMESTAMP, n BIGINT, pages STRING"
    side_outputs = (AWAY,)

    def on_row(self, state, row, timers):
        state["n"] = state.get("n", 0) + 1
        pages = state.setdefault("pages", {})
        pages[row["page"]] = [*pages.get(row["page"], []), row["at"]]
        state["user"] = row["user"]
        timers.clear()
        timers.set(row["at"] + HOUR * 1.5)
        yield {"user": row["user"], "n": state["n"], "pages": told(pages)}

    def on_timer(self, state, at, timers):
        yield AWAY.row(user=state["user"], n=-state["n"], pages=told(state["pages"]))


def told(pages: dict) -> str:
    return " ".join(f"{page}{len(times)}" for page, times in pages.items())


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def visits(visit_topic: DataFrame) -> DataFrame:
    return visit_topic


@row_table(layer="silver")
def shown(visits: DataFrame) -> DataFrame:
    return visits.where("page <> 'hidden'")


@row_table(layer="gold", ttl=TTL)
def outcomes(shown: DataFrame) -> DataFrame:
    return process(shown, by=["user"], function=Visits(), at="at")


@row_table(layer="gold")
def numbered(outcomes: DataFrame) -> DataFrame:
    return main_output(outcomes)


@row_table(layer="gold")
def absences(outcomes: DataFrame) -> DataFrame:
    return side_output(outcomes, AWAY)
