"""The producers: what they generate is pure and exact."""

import gzip
import hashlib
import importlib
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice, pairwise
from math import sqrt
from pathlib import Path
from random import Random
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from examples.network import producer as network
from examples.visits import producer as visits
from lakehouse.declare.modules import pipeline_of
from lakehouse.errors import BrokerError, SettingsError
from lakehouse.examples.ads import producer as ads
from lakehouse.examples.sensors import producer as sensors
from lakehouse.producers.faults import KINDS, OVERSIZED
from lakehouse.producers.files import lines
from lakehouse.producers.registry import find, producer
from lakehouse.producers.sender import _Tally, send
from lakehouse.producers.workload import DUPLICATE, LATE, MALFORMED, ORDINARY, Record, Workload
from lakehouse.settings import Settings
from support.workloads import LINE, PRODUCERS, ROUGH, START

KEY_FIELD = {"sensors": "sensor_id", "ads": "ad_id"}


# --- generation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", PRODUCERS)
def test_same_settings_and_start_give_the_same_records(pipeline: str) -> None:
    records = PRODUCERS[pipeline].records
    first = list(records(ROUGH, START, START + 5_000))
    assert first == list(records(ROUGH, START, START + 5_000))
    assert first != list(records(replace(ROUGH, seed=2), START, START + 5_000))
    assert first == list(islice(records(ROUGH, START, None), len(first))), (
        "a range begins as the endless stream does"
    )


@pytest.mark.parametrize("pipeline", PRODUCERS)
@hypothesis_settings(max_examples=25, deadline=None)
@given(
    rate=st.integers(1, 3_000),
    disorder_ms=st.integers(0, 5_000),
    late_ms=st.integers(1, 60_000),
    share=st.sampled_from((0.0, 0.1, 0.3)),
    start=st.integers(START, START + 10_000),
)
def test_instants_are_even_and_no_event_is_ahead_or_too_far_behind(
    pipeline: str, rate: int, disorder_ms: int, late_ms: int, share: float, start: int
) -> None:
    workload = Workload(
        rate=rate,
        disorder_ms=disorder_ms,
        late_by_ms=disorder_ms + late_ms,
        late_share=share,
        duplicate_share=share,
        malformed_share=share,
        partitions=4,
    )
    sent = list(PRODUCERS[pipeline].records(workload, start, start + 1_000))
    events = [record for record in sent if record.kind != DUPLICATE]
    assert [record.time_ms for record in events] == [start + i * 1000 // rate for i in range(rate)]
    for record in sent:
        assert 0 <= record.partition < 4
        assert (record.event_ms is None) == (record.kind == MALFORMED)
        if record.event_ms is not None:
            behind = record.time_ms - record.event_ms
            if record.kind == LATE:
                assert disorder_ms < behind <= disorder_ms + late_ms
            else:
                assert 0 <= behind <= disorder_ms


@pytest.mark.parametrize("pipeline", PRODUCERS)
def test_shares_are_what_was_asked_for(pipeline: str) -> None:
    n = 40_000
    sent = list(PRODUCERS[pipeline].records(ROUGH, START, START + n * 1000 // ROUGH.rate))
    kinds = Counter(record.kind for record in sent)
    assert kinds.total() - kinds[DUPLICATE] == n
    for kind, share in ((LATE, 0.02), (DUPLICATE, 0.03), (MALFORMED, 0.05)):
        assert abs(kinds[kind] - n * share) < 4 * sqrt(n * share * (1 - share)), kind
    for before, record in pairwise(sent):
        if record.kind == DUPLICATE:
            assert before == record._replace(kind=ORDINARY), "twice, byte for byte"


def test_ad_events_are_those_of_the_yahoo_streaming_benchmark() -> None:
    workload = Workload(partitions=4, disorder_ms=99)
    events = list(ads.records(workload, START, START + 20_000))
    assert {record.key for record in events} == {None}
    assert [record.partition for record in events[:6]] == [0, 1, 2, 3, 0, 1]
    assert sum(len(record.value or b"") for record in events) / len(events) == pytest.approx(
        253, abs=1
    )
    parsed = [json.loads(record.value or b"") for record in events]
    names = ["user_id", "page_id", "ad_id", "ad_type", "event_type", "event_time", "ip_address"]
    assert all(list(event) == names for event in parsed)
    assert all(type(value) is str for event in parsed for value in event.values())
    domain = {name: {event[name] for event in parsed} for name in names}
    assert domain["ad_type"] == {"banner", "modal", "sponsored-search", "mail", "mobile"}
    assert domain["event_type"] == {"view", "click", "purchase"}
    assert domain["ad_id"] == set(ads.ad_campaigns()), "20 events an ad: all are seen"
    assert len(domain["user_id"]) == len(domain["page_id"]) == 100
    assert domain["ip_address"] == {"1.2.3.4"}
    assert [int(event["event_time"]) for event in parsed] == [record.event_ms for record in events]


def test_ad_campaigns_follow_from_their_seed() -> None:
    rng = Random(2015)

    def identifier() -> str:
        return str(UUID(int=rng.getrandbits(128), version=4))

    expected = {
        identifier(): campaign for campaign in [identifier() for _ in range(100)] for _ in range(10)
    }
    assert ads.ad_campaigns() == expected


def test_sensor_readings_are_keyed_plausible_and_differ_by_the_hour() -> None:
    workload = Workload(rate=1, partitions=3)
    day = list(sensors.records(workload, START, START + 86_400_000))
    warmth: dict[str, list[Decimal]] = {}
    for record in day:
        reading = json.loads(record.value or b"", parse_float=Decimal)
        assert list(reading) == ["sensor_id", "event_time", "temperature_f"]
        assert record.key == reading["sensor_id"].encode()
        assert record.partition == crc32(record.key) % 3
        happened = datetime.strptime(reading["event_time"], "%Y-%m-%dT%H:%M:%S.%f%z")
        assert happened == datetime.fromtimestamp((record.event_ms or 0) / 1000, UTC)
        assert reading["temperature_f"].as_tuple().exponent == -2
        warmth.setdefault(reading["sensor_id"], []).append(reading["temperature_f"])
    assert sorted(warmth) == [f"sensor-{n:03d}" for n in range(20)]
    for temperatures in warmth.values():
        assert 35 < min(temperatures) < max(temperatures) < 110
        assert 6 <= max(temperatures) - min(temperatures) <= 32
        steps = [abs(a - b) for a, b in pairwise(temperatures)]
        assert max(steps) < 1.5, "a curve, not noise"


def test_log_lines_are_keyed_by_address_and_visitors_come_in_sessions() -> None:
    hour = list(visits.records(Workload(rate=2, partitions=3), START, START + 3_600_000))
    times: dict[tuple[str, str], list[int]] = {}
    wanted: Counter[str] = Counter()
    for record in hour:
        ip, agent, path, _, second = read(record)
        assert (record.key, record.partition) == (ip.encode(), crc32(ip.encode()) % 3)
        assert second == (record.event_ms or 0) // 1000, "to the second"
        times.setdefault((ip, agent), []).append(second)
        wanted[path] += 1
    networks = [ip[: max(map(ip.rfind, ".:")) + 1] for ip, _ in times]
    assert set(networks) == {network for network, _ in visits.NETWORKS}
    assert {agent for _, agent in times} == {agent for agent, _ in visits.AGENTS}
    stays = sorted(max(found) - min(found) for found in times.values())
    assert stays[len(stays) // 2] <= 600, "most stay for ten minutes"
    assert [path for path, _ in wanted.most_common(3)] == list(visits.PAGES[:3])


# --- the oracle, against a recount that knows nothing of how the records were made -----------------------------------


def understood(
    record: Record, fields: dict[str, type], event_ms: Callable[[str], int]
) -> dict[str, object] | None:
    """The parsed record with its event time in ms, or None if anything is wrong with it."""
    try:
        event = json.loads((record.value or b"").decode(), parse_float=Decimal)
        if any(type(event[name]) is not kind for name, kind in fields.items()):
            return None
        event["event_time"] = event_ms(event["event_time"])
    except (ValueError, KeyError):
        return None
    return event if START - 100_000_000 < event["event_time"] < record.time_ms + 60_000 else None


def iso_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_expected_views_agree_with_a_recount() -> None:
    campaigns, views = ads.ad_campaigns(), Counter[tuple[str, int]]()
    for record in ads.records(ROUGH, START, START + 25_000):
        event = understood(record, {"ad_id": str, "event_type": str, "event_time": str}, int)
        if event and event["event_type"] == "view":
            views[campaigns[event["ad_id"]], event["event_time"] // 10_000 * 10_000] += 1
    assert ads.expected_views(ROUGH, START, START + 25_000) == dict(views)


def test_expected_readings_agree_with_a_recount() -> None:
    windows: dict[tuple[str, int], list[Decimal]] = {}
    for record in sensors.records(ROUGH, START, START + 25_000, sensors=7):
        reading = understood(
            record, {"sensor_id": str, "event_time": str, "temperature_f": Decimal}, iso_ms
        )
        if reading:
            window = reading["sensor_id"], reading["event_time"] // 5_000 * 5_000
            windows.setdefault(window, []).append(reading["temperature_f"])
    assert sensors.expected_readings(ROUGH, START, START + 25_000, sensors=7) == {
        window: (len(found), min(found), max(found)) for window, found in windows.items()
    }


def read(record: Record) -> tuple[str, str, str, bool, int]:
    """Address, agent, path, whether a page was shown, and the second of a log line; read as a shell reads words."""
    ip, _, _, day, zone, request, status, _, _, agent = shlex.split((record.value or b"").decode())
    method, target, _ = request.split(" ")
    path = target.partition("?")[0]
    at = datetime.strptime(f"{day} {zone}", "[%d/%b/%Y:%H:%M:%S %z]")
    return (
        ip,
        agent,
        path,
        method == "GET" and status in ("200", "304") and "." not in path,
        int(at.timestamp()),
    )


def test_expected_visits_agree_with_a_recount() -> None:
    workload = replace(ROUGH, rate=1, late_by_ms=4_000_000)
    end = START + 4 * 3_600_000
    seen = [read(r) for r in visits.records(workload, START, end) if r.kind != MALFORMED]
    countries = dict(visits.NETWORKS)
    by_country: dict[tuple[str, int], list[str]] = {}
    by_path: dict[tuple[str, int], list[str]] = {}
    pages: dict[str, list[tuple[int, str]]] = {}
    for ip, agent, path, is_page, second in seen:
        if "bot" in agent or "curl" in agent:
            continue
        country = countries[max((n for n in countries if ip.startswith(n)), key=len)]
        for start in range(0, second + 1, 60)[-5:]:
            by_country.setdefault((country, start * 1000), []).append(ip + agent)
        if is_page:
            by_path.setdefault((path, second // 300 * 300_000), []).append(ip + agent)
            pages.setdefault(hashlib.sha256(f"{ip} {agent}".encode()).hexdigest()[:16], []).append(
                (second * 1000, country)
            )
    counted = [
        {w: (len(v), len(set(v))) for w, v in found.items()} for found in (by_country, by_path)
    ]
    assert visits.expected_visitors(workload, START, end) == counted[0]
    assert visits.expected_page_views(workload, START, end) == counted[1]
    sessions: dict[tuple[str, int], tuple[int, int, str]] = {}
    for visitor, found in pages.items():
        first = None
        for at, country in sorted(found):
            if first is None or at > sessions[visitor, first][0] + 1_800_000:
                first = at
            before = sessions.get((visitor, first), (at, 0, country))
            sessions[visitor, first] = at, before[1] + 1, country
    assert visits.expected_sessions(workload, START, end) == sessions
    assert len(sessions) > len(pages), "some come back after half an hour"


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", KEY_FIELD)
def test_each_kind_of_bad_input_is_bad_in_its_own_way(pipeline: str) -> None:
    bad = {kind: PRODUCERS[pipeline].malformed(kind, START) for kind in (*KINDS, OVERSIZED)}
    assert {(r.kind, r.partition, r.time_ms, r.event_ms) for r in bad.values()} == {
        (MALFORMED, 0, START, None)
    }
    assert bad["tombstone"].value is None
    with pytest.raises(json.JSONDecodeError):
        json.loads(bad["not_json"].value or b"")
    with pytest.raises(UnicodeDecodeError):
        (bad["invalid_utf8"].value or b"").decode()
    parsed = {
        kind: json.loads(record.value or b"")
        for kind, record in bad.items()
        if kind not in ("tombstone", "not_json", "invalid_utf8")
    }
    assert parsed["wrong_type"]["event_time"] is True
    assert "event_time" not in parsed["missing_field"]
    assert parsed["null_key"][KEY_FIELD[pipeline]] is None
    assert bad["null_key"].key is None
    assert len(bad[OVERSIZED].value or b"") > 5_000_000
    read = int if pipeline == "ads" else iso_ms
    assert read(parsed["hour_ahead"]["event_time"]) == START + 3_600_000
    assert read(parsed["year_1970"]["event_time"]) == 0
    assert read(parsed["year_9999"]["event_time"]) == 253_402_300_799_999


def test_each_kind_of_bad_line_is_bad_in_its_own_way() -> None:
    bad = {kind: visits.malformed(kind, START) for kind in (*KINDS, OVERSIZED)}
    assert {(r.kind, r.partition, r.time_ms, r.event_ms) for r in bad.values()} == {
        (MALFORMED, 0, START, None)
    }
    assert bad["tombstone"].value is None
    assert b"[True]" in bad["wrong_type"].value and b"[-]" in bad["missing_field"].value
    assert bad["null_key"].key is None and bad["null_key"].value.startswith(b"- ")
    assert len(bad[OVERSIZED].value) > 5_000_000
    with pytest.raises(ValueError, match="not enough values to unpack"):
        read(bad["not_json"])
    with pytest.raises(UnicodeDecodeError):
        read(bad["invalid_utf8"])
    seconds = {kind: read(bad[kind])[-1] for kind in ("hour_ahead", "year_1970", "year_9999")}
    assert seconds == {
        "hour_ahead": START // 1000 + 3_600,
        "year_1970": 0,
        "year_9999": 253_402_300_799,
    }


def test_lines_of_a_log_are_sent_as_they_are_at_their_own_time() -> None:
    ahead = LINE.replace(b"2000", b"2999")
    junk = [
        b"junk",
        b"",
        b"\xff\xfe",
        LINE[:-1],
        LINE.replace(b"Oct", b"Okt"),
        LINE.replace(b"10/", b"32/"),
        LINE + b" 5",
    ]
    began = int(time.time() * 1000)
    sent = list(visits.of_lines([LINE, ahead, *junk], 3))
    assert [record.value for record in sent] == [LINE, ahead, *junk]
    partition = crc32(b"192.0.2.1") % 3
    assert sent[0] == Record(
        b"192.0.2.1", LINE, partition, 971_211_336_000, 971_211_336_000, ORDINARY
    )
    assert began <= sent[1].time_ms <= time.time() * 1000, "none is waited for"
    assert {(r.key, r.event_ms, r.kind) for r in sent[2:]} == {(None, None, MALFORMED)}
    assert all(r.time_ms >= began for r in sent[2:])


def test_generated_lines_are_lines_of_a_log() -> None:
    made = [r for r in visits.records(ROUGH, START, START + 2_000) if r.kind != MALFORMED]
    again = list(visits.of_lines((r.value or b"" for r in made), ROUGH.partitions))
    assert [r[:3] for r in again] == [r[:3] for r in made]
    assert [r.event_ms for r in again] == [(r.event_ms or 0) // 1000 * 1000 for r in made]


@pytest.mark.parametrize(
    ("time_text", "ms"),
    [
        ("21/Nov/2026:10:00:00 +0000", START),
        ("21/Nov/2026:15:30:00 +0530", START),
        ("21/Nov/2026:06:30:00 -0330", START),
        ("29/Feb/2026:10:00:00 +0000", None),
        ("21/Nov/2026:10:00:60 +0000", None),
        ("21/Nov/2026:10:00:00 +9900", None),
        ("21/Nov/2026:10:00:00", None),
    ],
)
def test_the_time_of_a_line_is_read_in_its_zone(time_text: str, ms: int | None) -> None:
    assert visits.parsed(time_text) == ms
    assert ms is None or visits.parsed(visits.stamp(ms)) == ms


def test_files_are_read_one_after_the_other_packed_or_not(tmp_path: Path) -> None:
    plain, packed, cut = tmp_path / "access.log", tmp_path / "access.log.1.gz", tmp_path / "cut.gz"
    plain.write_bytes(b"one\r\n\ntwo")
    packed.write_bytes(gzip.compress(b"three\nfour\n"))
    cut.write_bytes(packed.read_bytes()[:-9])
    assert list(lines([str(packed), str(plain)])) == [b"three", b"four", b"one", b"", b"two"]
    with pytest.raises(
        SettingsError, match=r"none.log': a file of lines, .* there is no such file"
    ):
        lines([str(plain), str(tmp_path / "none.log")])
    packed.write_bytes(b"not packed")
    for broken in (cut, packed):
        with pytest.raises(SettingsError, match="it cannot be read to its end"):
            list(lines([str(broken)]))


@pytest.mark.parametrize("pipeline", PRODUCERS)
def test_malformed_records_go_through_all_kinds_in_turn(pipeline: str) -> None:
    workload = replace(ROUGH, malformed_share=1.0, late_share=0.0, duplicate_share=0.0)
    sent = list(PRODUCERS[pipeline].records(workload, START, START + 9))
    assert [record.value is None for record in sent[:9]] == [kind == "tombstone" for kind in KINDS]
    assert len(sent) == 18
    assert {record.kind for record in sent} == {MALFORMED}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"late_share": 1.5}, "late_share=1.5: a share lies between 0 and 1"),
        ({"rate": 0}, "rate=0: at least 1"),
        ({"late_share": 0.6, "malformed_share": 0.6}, "their sum is at most 1"),
        (
            {"late_share": 0.1, "late_by_ms": 50, "disorder_ms": 50},
            "late means later than disorder_ms=50",
        ),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Workload(**changes)  # type: ignore[arg-type]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes packages in `tmp_path`, each of modules by their names; nothing of them is left in Python."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}

    def make(name: str, **modules: str) -> None:
        (tmp_path / name).mkdir()
        for module, code in modules.items():
            (tmp_path / name / f"{module}.py").write_text(code)

    yield make
    for name in {*sys.modules} - before:
        del sys.modules[name]


OWN = (
    "from dataclasses import replace\nfrom lakehouse.examples.ads.producer import PRODUCER as ads\n"
)


def test_a_producer_is_found_beside_the_tables_of_its_pipeline(
    tmp_path: Path, package: Callable[..., None]
) -> None:
    package("weather", tables="", producer=OWN + "PRODUCER = replace(ads, topic='weather')\n")
    package("rain", tables="")
    own = Settings(tables=("weather.tables", "rain.tables", "orders"), module_path=(tmp_path,))
    assert producer(own, "weather").topic == "weather"
    assert producer(Settings(), "ads") is ads.PRODUCER
    for name in ("rain", "orders", "ads", None):
        assert find(own, name) is None
        with pytest.raises(
            SettingsError,
            match=f"pipeline={name!r}, tables=weather.tables, rain.tables, orders: a producer is PRODUCER of the module "
            "`producer` beside `tables`, and there is one for weather; .* --topic and --file",
        ):
            producer(own, name)
    with pytest.raises(SettingsError, match="there is one for no pipeline; "):
        producer(Settings(tables=("orders", "gone.tables")), "orders")


@pytest.mark.parametrize(
    "tables",
    [
        *(f"examples.{name}.tables" for name in ("bank", "shop", "network", "visits")),
        "benchmarks.nexmark.tables",
    ],
)
def test_the_producer_of_an_example_is_found(tables: str) -> None:
    beside = importlib.import_module(tables.replace("tables", "producer"))
    assert producer(Settings(tables=(tables,)), pipeline_of(tables)) is beside.PRODUCER


def test_the_producer_of_another_pipeline_is_not_run(
    tmp_path: Path, package: Callable[..., None]
) -> None:
    package("snow", tables="", producer="raise RuntimeError('broken')\n")
    package("hail", tables="", producer=OWN + "PRODUCER = ads\n")
    own = Settings(tables=("snow.tables", "hail.tables"), module_path=(tmp_path,))
    assert producer(own, "hail") is ads.PRODUCER
    with pytest.raises(SettingsError, match="there is one for snow, hail; "):
        producer(own, "sleet")
    with pytest.raises(RuntimeError, match="broken"):
        producer(own, "snow")


def test_a_producer_that_lacks_a_package_is_no_missing_producer(
    tmp_path: Path, package: Callable[..., None]
) -> None:
    package("snow", producer="import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        producer(Settings(tables=("snow.tables",), module_path=(tmp_path,)), "snow")


def test_a_producer_of_another_type_is_refused(
    tmp_path: Path, package: Callable[..., None]
) -> None:
    package("fog", producer="PRODUCER = 'that of fog'\n")
    package("mist", producer="producer = None\n")
    own = Settings(tables=("fog.tables", "mist.tables"), module_path=(tmp_path,))
    with pytest.raises(
        SettingsError, match=r"PRODUCER='that of fog' of fog.producer: it must be a .*\.Producer; "
    ):
        find(own, "fog")
    assert find(own, "mist") is None, "a module of another meaning"


def test_an_unknown_kind_of_bad_input_is_refused() -> None:
    with pytest.raises(SettingsError, match="kind='odd': bad input is one of not_json, "):
        ads.malformed("odd", START)


def test_a_broker_that_is_gone_is_an_error_with_the_number_of_records_lost() -> None:
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "300", "log_level": "0"}
    with pytest.raises(
        BrokerError, match=r"delivery to ad-events \(lost=100 of 100\): every record must arrive"
    ):
        send(ads.records(Workload(rate=100), START, START + 1_000), "ad-events", nowhere)


def test_a_summary_names_each_topic_that_records_went_to() -> None:
    made, tally = network.PRODUCER, _Tally()
    assert tally.summary(made.topic, 1.0).topic == "cell-measurements", "nothing was sent"
    tally.add(list(islice(made.records(made.workload, START, None), 500)))
    assert tally.summary(made.topic, 1.0).topic == "cell-measurements, gateway-requests"
