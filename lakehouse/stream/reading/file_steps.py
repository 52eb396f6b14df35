"""The steps of an ingest table that reads a folder, or a table of others.

What has come is registered (`storage.foreign.foreign_sources`), and the records of registered files are
read in order: a source of one partition, whose offsets are the numbers of its records.
"""

import logging
import time
from typing import Any, cast

from pyspark.sql.types import StructType

from lakehouse.errors import SourceError
from lakehouse.storage.foreign import foreign_sources
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_files import Away, Gone
from lakehouse.storage.foreign.foreign_records import PARTITION, RecordReader
from lakehouse.stream.advance import LOOK, Take
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.stream.reading import offsets
from lakehouse.stream.reading.offsets import Offsets
from lakehouse.stream.reading.records import file_sources
from lakehouse.stream.reading.source_steps import Finish, Records, SourceSteps

_log = logging.getLogger(__name__)

_SHARE = 10  # a look that takes long is followed by so many times as long without one
_TURN = 0.1  # seconds between two looks whether there is something to do
_SETTLED = 10.0  # seconds beyond `settle` for files to stand still, of a query up to the present
_RENAMED = 10.0  # seconds beyond it for a file that is gone to be seen under another name


class FileSteps(SourceSteps):
    """Fills an ingest table from its folder, or from a table of others.

    Raises SourceError, CommitError or DeclarationError if it cannot go on from the table's last
    commit. A folder that is not there is waited for, unless the query is to end at the present.
    """

    def __init__(self, run: StreamRun, take: Take, finish: Finish, **how: Any) -> None:
        super().__init__(run, take, finish, **how)
        settings, last = run.session.settings, self._last()
        (self._source,) = file_sources(run.plan.sources.values())
        self._topic = self._source.address
        gaps = offsets.known(settings, run.table).gaps
        self._gaps = [gap for gap in gaps if gap.topic == self._topic]
        self._register = Register(settings, run.table)
        if last is None:  # what was registered for a table that has been removed
            self._register.restart()
        begins = offsets.behind(settings, run.table, last, self._position(0))
        if (number := begins[self._topic][PARTITION]) > self._register.end:
            raise self._register.damaged(
                f"it has {self._register.end:,} of them, and the table has read {number:,}"
            )
        if number < self._register.end and not self._register.knows(number):
            raise self._register.damaged(
                f"it has forgotten the files behind record {number:,}, where the table goes on"
            )
        self._begins = begins
        columns = cast(StructType, StructType.fromDDL(self._source.schema))
        types = {each.name: each.dataType.simpleString() for each in columns}
        self._files = foreign_sources.files_of(self._source, self._register)
        self._feed = self._files.feed(self._is_lost, types)
        self._reader = RecordReader(self._files)
        self._is_away = False  # the folder is not there, or a file that is to be read is not
        self._took = 0.0  # seconds of the last look
        self._gone_since: float | None = None
        self._said_unsettled = False

    def _position(self, number: int) -> Offsets:
        return {self._topic: {PARTITION: number}}

    def _is_lost(self, known: Registered) -> bool:
        return any(gap.since < known.end and known.first < gap.until for gap in self._gaps)

    def _resumed(self) -> tuple[Offsets, int]:
        self._at = self._begins
        number = self._finished()
        if self.available_now:
            self._until = self._latest()
            self._began_at = time.monotonic()
        return self._at, number

    @property
    def _is_blind(self) -> bool:
        return self._is_away

    def _next(self) -> Records | None:
        piece = super()._next()
        ends = piece is None and self.available_now and not self._stopping.is_set()
        if ends and (refused := self._feed.refused):
            raise SourceError("; ".join(refused))
        return piece

    def _wait(self) -> None:
        while not self._is_due:
            self._stopping.wait(min(max(self._due_in, 0), LOOK))
        if self._number < self._register.end and not self._is_away:
            return
        while not self._stopping.wait(_TURN):
            if self._is_asked_for or self._is_to_look or self._silence.is_due(time.monotonic()):
                return

    @property
    def _is_to_look(self) -> bool:
        """Whether it is time to look what has come: a folder of very many files is not looked at all the time."""
        return time.monotonic() - self._looked > max(LOOK, _SHARE * self._took)

    @property
    def _number(self) -> int:
        return self._at[self._topic][PARTITION]

    def _cut(self) -> Records | None:
        if self._number >= self._register.end or self._is_away or self._is_to_look:
            self._look()
        if self._is_away:
            return None
        begin, end = self._range()
        if begin == end:
            self._at = self._position(begin)
            self._is_read_again()
            return None
        try:
            rows = self._reader.read(begin, end)
            self._gone_since = None
            self._is_read_again()
        except Gone as err:
            self._await_renamed(err)
            return None
        self._idle.clear()
        read = begin + rows.num_rows
        return Records(
            self._position(begin), self._position(read), rows.num_rows, here={self._topic: rows}
        )

    def _is_read_again(self) -> None:
        """What was waited for is there: a look alone does not say so, for it finds no file that is gone."""
        self._said = ""

    def _look(self) -> None:
        """Has what has come registered, and says what is amiss."""
        most = self.run.session.settings.max_offsets_per_trigger
        started = time.monotonic()
        try:
            self._feed.look(self._number, most)
            # while enough is registered, a look passes over the name that a file has now
            if self._gone_since is not None:
                self._files.follow_renames()
        except Away as err:
            if self.available_now:
                raise
            self._is_away = True
            self._say(f"{err}; it is waited for")
        else:
            self._is_away = False
            self.trouble = "; ".join(self._feed.remarks)
        self._looked = time.monotonic()
        self._took = self._looked - started
        self._ends = self._position(self._register.end)

    def _range(self) -> tuple[int, int]:
        """What the next step may read: not what someone has accepted to be lost."""
        begin, end = self._number, self._register.end
        end = min(end, begin + self.run.session.settings.max_offsets_per_trigger)
        for gap in sorted(self._gaps, key=lambda gap: gap.since):
            if gap.since <= begin < gap.until:
                begin = gap.until
            elif begin < gap.since:
                end = min(end, gap.since)
        return begin, max(begin, end)

    def _await_renamed(self, err: Gone) -> None:
        """Waits for a file that may have another name by now. Raises Gone if that lasts."""
        now = time.monotonic()
        self._gone_since = now if self._gone_since is None else self._gone_since
        if not self._files.may_rename or now - self._gone_since > self._files.settle + _RENAMED:
            raise err
        self._is_away = True
        self._say(f"{err}; it may have been renamed, which is looked for")

    def _latest(self) -> Any:
        return self._feed.present()

    def _is_past(self, position: Any) -> bool:
        if self._at is None:
            return False
        if self._feed.has_read(position, self._number):
            return True
        if not self.available_now or self._number < self._register.end:
            return False
        if time.monotonic() - self._began_at < self._files.settle + _SETTLED:
            return False
        if not self._said_unsettled:
            self._said_unsettled = True
            _log.warning(
                f"table={self.name}, path={self._topic}: files in it do not stand still and are left for the next run"
            )
        return True

    def _close(self) -> None:
        self._reader.close()
