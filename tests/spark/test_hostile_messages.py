"""Of messages of which half are hostile each is in exactly one place: a row with the values that were sent, or quarantined."""

import pytest

from stories import hostile_tables
from stories.hostile_tables import FORMATS, never_sent, play_all, shown

MANY = {"json": 20_000, "json_schema": 10_000, "csv": 15_000, "text": 5_000, "avro": 10_000, "protobuf": 10_000,
        "changes": 15_000, "folder": 7_500, "own": 7_500}  # fmt: skip


def test_hostile_messages_are_in_one_place_as_sent_or_quarantined(spark, tmp_path, fresh_seed):
    occurred = play_all(spark, tmp_path, fresh_seed, dict.fromkeys(FORMATS, 400))
    assert never_sent(occurred) == []


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(1)
def test_100_000_hostile_messages_are_in_one_place(spark, tmp_path, fresh_seed, record_property):
    occurred = play_all(spark, tmp_path, fresh_seed, MANY)
    assert sum(occurred[f"{format} sent"] for format in FORMATS) == 100_000
    assert never_sent(occurred) == []
    places = {
        place: sum(occurred[f"{format} {place}"] for format in FORMATS)
        for place in hostile_tables.PLACES
    }
    assert sum(places.values()) == 100_000
    assert 40_000 < places["good"] < 62_000, "half of them are hostile"
    record_property("stories", f"hostile messages, seed {fresh_seed}: {shown(occurred)}")
