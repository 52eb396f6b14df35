"""Every kind of table over one record, in random stories: cut anywhere, crashed, shuffled, repeated, late."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from test_equivalence import MANY, Event, Story, assert_counts_add_up, assert_every_offset_is_there_once, play, stories

from benchmarks import operators
from lakehouse import proof

START = datetime(2026, 3, 28, 20, 30, tzinfo=UTC)  # the stories begin two hours later; Berlin's clocks change that night
DAYS = 3 * 86_400


def click(event: Event) -> dict:
    at = (START + timedelta(seconds=event.at)).isoformat()
    return {"id": event.at, "user": f"user-{event.key}", "at": at, "value": event.value}


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(1800)
@given(story=stories())
@settings(MANY, max_examples=1)
def test_every_operator_live_equals_bounded(stage_of, story: Story) -> None:
    stage = stage_of(operators)
    tables = [t for t in stage.lake.catalog if stage.lake.catalog.kind(t) != "record"]
    names = [t.name for t in tables]
    play(stage, story, "clicks", names, click)
    last = max(e.at for batch in story.batches for e in batch)
    for days in (1, 2):  # the second carries the watermark that closes the days
        stage.advance("clicks", click(Event(last + days * DAYS, 1, 0, 70)))
    stage.run(*names, files_per_batch=story.files)
    assert_every_offset_is_there_once(stage, "clicks")
    compared = 0
    for table in tables:
        stage.update(table.name)
        certificate = proof.reconcile(stage.lake, table)
        assert certificate.verdict == "EQUAL", (table.name, certificate.detail, certificate.examples)
        compared += certificate.rows_bounded
        if table.window and table.late != "update" and table.window.kind in ("tumbling", "session"):
            assert_counts_add_up(stage, table.name)
    assert compared, "at least the days hold every click"
