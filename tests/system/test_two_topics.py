"""Two real topics fill one ingest table."""

import json
from dataclasses import replace

import pytest

from lakehouse.errors import DeclarationError
from lakehouse.producers.sender import send
from lakehouse.producers.workload import ORDINARY, Record
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.stream import queries
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import purchases
from support.purchases import START, till, web


@pytest.mark.slow
@pytest.mark.parallel
def test_two_real_topics_fill_one_record_exactly_once(spark, tmp_path):
    settings = Settings(root=tmp_path, jars=from_environment().jars, tables=(purchases.__name__,))
    kafka_broker.start(settings, jars.resolve(settings.jars))
    try:
        kafka_broker.ensure_topics(settings, {"web": 2, "tills": 1}, {"retention.ms": "-1"})
        stage = Stage(spark, tmp_path, purchases)
        sent = 0
        for span in (range(60), range(60, 120)):
            for topic, parts, rows in (("web", 2, web(*span)), ("tills", 1, till(*span))):
                at = int(START.timestamp() * 1000)
                records = [
                    Record(None, json.dumps(r).encode(), i % parts, at, at, ORDINARY)
                    for i, r in enumerate(rows)
                ]
                sent += send(records, topic, client_config(settings)).sent
            record = stage.session.catalog.table("purchases")
            queries.start(stage.session, record, available_now=True).awaitTermination()
        arrivals = [r._arrival for r in stage.rows("purchases").collect()]
        assert len({(a.topic, a.partition, a.offset) for a in arrivals}) == len(arrivals) == sent
        last = next(stage.session.commit_log(record).by_stream())
        assert {t: sum(o.values()) for t, o in last.inputs.items()} == {"web": 120, "tills": 120}
        assert set(last.heads) == {"web-0", "web-1", "tills-0"}
        stage.run("purchase_counts")
        assert_stream_equals_batch(stage, "purchase_counts")
        fewer = replace(record, inputs=("web_topic",))
        with pytest.raises(
            DeclarationError,
            match="topics=web: its checkpoint was made with tills, web, and an ingest",
        ):
            queries.start(fewer_topics(stage.session, fewer), fewer)
    finally:
        kafka_broker.stop(settings)


def fewer_topics(session, table):
    """The lakehouse with that table declared again."""
    return replace(
        session,
        catalog=replace(session.catalog, tables=session.catalog.tables | {table.name: table}),
    )
