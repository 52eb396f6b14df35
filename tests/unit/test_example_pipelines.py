"""The pipelines of the network, the shop and the alerts: what is sent, what their pages show, what Dagster gets of them."""

import gzip
import importlib
import inspect
import json
import re
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pytest

from assets import definitions
from examples.network import producer as network
from examples.shop import producer as shop
from lakehouse.declare.catalog import catalog_of
from lakehouse.producers.faults import KINDS
from lakehouse.producers.workload import DUPLICATE, LATE, MALFORMED, ORDINARY, Record, Workload
from lakehouse.settings import Settings
from support import ROOT, TESTS
from support.workloads import ROUGH, START

TABLES = {
    name: importlib.import_module(f"examples.{name}.tables")
    for name in ("network", "shop", "bank", "fraud")
}


@pytest.mark.parametrize("chosen", [network.PRODUCER, shop.PRODUCER], ids=["network", "shop"])
def test_the_same_settings_and_start_give_the_same_records_in_the_order_of_sending(chosen):
    sent = list(chosen.records(ROUGH, START, START + 20_000))
    assert sent == list(chosen.records(ROUGH, START, START + 20_000))
    assert {record.topic for record in sent} == {chosen.topic, *chosen.beside}
    assert {record.kind for record in sent} == {ORDINARY, LATE, DUPLICATE, MALFORMED}
    times = [record.time_ms for record in sent]
    assert times == sorted(times) and times[0] == START
    for record in sent:
        assert 0 <= record.partition < ROUGH.partitions
        assert record.event_ms is None or record.event_ms <= record.time_ms
    for kind in KINDS:
        bad = chosen.malformed(kind, START)
        assert (bad.kind, bad.topic, bad.time_ms) == (MALFORMED, chosen.topic, START)


def test_some_cells_are_disturbed_and_each_attacker_has_two_minutes():
    sent = list(network.records(Workload(rate=20), START, START + 12 * 60_000))
    signal, refused = defaultdict(list), defaultdict(set)
    for record in sent:
        value = json.loads(record.value or b"")
        if record.topic == network.MEASUREMENTS:
            assert 0 <= value["failures"] <= value["attempts"]
            signal[value["cell_id"], record.event_ms // 240_000].append(value["sinr_db"])
        elif value["status"] in (401, 403) and not value["address"].startswith("10."):
            refused[value["address"]].add(record.event_ms // 120_000)
    means = [sum(found) / len(found) for found in signal.values()]
    assert len({cell for cell, _ in signal}) == 12
    assert sum(mean < 0 for mean in means) >= 5 and sum(mean > 8 for mean in means) >= 15
    assert len(refused) == 6 and all(len(turns) == 1 for turns in refused.values())


def envelopes(sent: list[Record]) -> list[dict]:
    return [json.loads(r.value) for r in sent if r.topic == shop.PRODUCTS and r.value]


def test_changes_of_products_have_the_form_that_a_connector_sends():
    with gzip.open(TESTS / "support" / "change_events.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    recorded = [json.loads(e["value"]) for e in lines if e["configured"] == "plain" and e["value"]]
    update = next(each for each in recorded if each["op"] == "u")
    for made in envelopes(list(shop.records(Workload(rate=1), START, START + 60_000))):
        assert made.keys() <= update.keys() and made["source"].keys() <= update["source"].keys()
        for name, value in made["source"].items():
            assert type(value) is type(update["source"][name]), name
        assert (made["before"] is None, made["after"] is None) == (
            made["op"] != "d",
            made["op"] == "d",
        )


def test_products_change_every_ten_seconds_and_what_is_gone_is_back_at_the_next_step():
    sent = list(shop.records(Workload(rate=1), START, START + 200_000))
    later = list(shop.records(Workload(rate=1), START + 200_000, START + 400_000))
    positions = [each["source"]["lsn"] for each in envelopes(sent)]
    assert positions == sorted(positions) and positions[-1] < envelopes(later)[0]["source"]["lsn"]
    steps = envelopes(sent)[60:]
    assert len(steps) == 19 and {each["op"] for each in steps} == {"c", "d", "u"}
    for gone, back in pairwise(steps):
        if gone["op"] == "d":
            assert back["op"] == "c"
            assert back["after"]["product_id"] == gone["before"]["product_id"]
    tombstones = [n for n, r in enumerate(sent) if r.topic == shop.PRODUCTS and r.value is None]
    assert tombstones
    for n in tombstones:
        assert (sent[n].key, json.loads(sent[n - 1].value)["op"]) == (sent[n - 1].key, "d")


def test_sessions_last_a_minute_and_are_about_a_category():
    clicks = [
        r for r in shop.records(Workload(rate=50), START, START + 300_000) if r.topic == shop.CLICKS
    ]
    of = defaultdict(list)
    for value in (json.loads(record.value) for record in clicks):
        of[value["session_id"]].append(value)
    own = 0
    for found in of.values():
        times = [datetime.fromisoformat(each["event_time"]) for each in found]
        assert (max(times) - min(times)).total_seconds() < 60
        assert len({each["customer_id"] for each in found}) == 1
        categories = [each["product_id"] // shop.A_CATEGORY for each in found]
        own += max(map(categories.count, categories))
    assert own / len(clicks) > 0.75


@pytest.mark.parametrize("pipeline", ["network"])
def test_the_functions_of_a_page_are_those_of_the_tables(pipeline):
    code = inspect.getsource(TABLES[pipeline])
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "start" / f"{pipeline}.md").read_text(), re.DOTALL
    )
    shown = [block[block.index("def ") :] for block in blocks]
    assert len(shown) == 2 and all(function in code for function in shown)


@pytest.mark.parametrize(
    ("page", "tables"),
    [("network", ("network",)), ("shop", ("shop",)), ("bank", ("bank", "fraud"))],
)
def test_the_commands_of_a_page_name_tables_and_targets_that_are_there(page, tables):
    known = catalog_of([TABLES[name] for name in tables])
    text = (ROOT / "docs" / "start" / f"{page}.md").read_text()
    named = re.findall(r"lakehouse (?:reconcile run|table get|topic check) ([\w.-]+)", text)
    assert named and set(named) <= set(known.tables)
    targets = re.findall(r"lakehouse (?:publish \w+|reconcile sink) ([\w.-]+)", text)
    assert len(targets) >= 5 and set(targets) <= set(known.targets())


@pytest.mark.parametrize(
    ("tables", "targets"),
    [
        (("network",), {"cell-alerts": "kafka", "intrusions": "http"}),
        (
            ("shop",),
            {
                "product": "redis",
                "shop_products": "postgres",
                "product-search": "opensearch",
                "shop.recommendations": "kafka",
            },
        ),
        (("bank", "fraud"), {"fraud-alerts": "kafka", "fraud_mails": "email"}),
    ],
)
def test_dagster_has_a_node_for_each_table_and_target(tables, targets):
    modules = tuple(TABLES[name].__name__ for name in tables)
    built = definitions.build(Settings(root=Path("/nowhere"), tables=modules))
    dg.Definitions.validate_loadable(built)
    graph = built.resolve_asset_graph()
    kinds = {target: graph.get(dg.AssetKey(["target", target])).kinds for target in targets}
    assert kinds == {target: {kind} for target, kind in targets.items()}
