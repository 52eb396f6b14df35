"""The resumption of an ingest table: what a crash left unfinished is finished once, whatever its source does meanwhile."""

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

from lakehouse.errors import SourceAway
from lakehouse.stream.reading.contract import Reader
from lakehouse.stream.reading.source_input import SourceInput


class NotYetWhole:
    """A reader whose source cannot say at first what there is to be read, as a history that is still being written."""

    sources: dict = {}
    AWAY = (SourceAway,)
    remark, trouble = None, ""
    asked = 0

    def begins(self, last: object) -> dict:
        return {"x": {"0": 7}}

    def present(self) -> dict:
        self.asked += 1
        if self.asked < 3:
            raise SourceAway("source=x: it is not whole yet")
        return {"x": {"0": 9}}

    def away(self, err: Exception) -> tuple[str, float]:
        return str(err), 0.0


def test_a_step_is_finished_once_though_the_source_is_away_after_it():
    pending, finished = SimpleNamespace(batch=4, inputs={}), []
    standing = SimpleNamespace(pending=pending, last=pending)
    run: Any = SimpleNamespace(
        table=SimpleNamespace(name="t"), state=SimpleNamespace(standing=standing)
    )
    reader = NotYetWhole()
    source_input = SourceInput(run, cast(Reader, reader), cast(Any, None), finished.append)
    loop: Any = SimpleNamespace(
        stopping=Event(), available_now=True, in_flight=None, remark="", trouble=""
    )
    source_input.attach(loop)
    assert source_input.resume() == ({"x": {"0": 7}}, 5)
    assert reader.asked == 3 and finished == [pending]
