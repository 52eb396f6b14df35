"""The frontier of an input, handed on to Spark's query also when no row comes. It closes the query's windows.

A row bears the watermark that was in force when it arrived, so by rows alone Spark lags one commit of
the input: windows that a first load, or a topic that falls silent, has closed stay open. So each
micro-batch hands on how far the input is complete by all that was read, and commits without rows move
the watermark as well. That is safe at any moment: rows still to be read arrived under a watermark
that was not lower.

Spark closes windows without a row only after it has run a micro-batch in this process. If there is
none to run, the last one is run again (`begin`), as after a crash before its own commit file.

The keyed tables of Spark's queries have no windows to close: their last commit log line is written
again, with the present frontier.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from lakehouse.ranges import EPOCH
from lakehouse.storage.delta import delta_log
from lakehouse.storage.position import checkpoint_files
from lakehouse.stream import news, positions
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.stream.positions import Position

_log = logging.getLogger(__name__)

_LOOK = 2.0  # seconds between two polls for commits of other processes
_MILLISECOND = timedelta(milliseconds=1)  # Spark's watermark has no finer instants


class InputFrontier:
    """The frontier of a table's input, handed on to the table's query, which is Spark's."""

    def __init__(self, run: StreamRun) -> None:
        self._run, self._input = run, run.plan.driving
        self._path = run.session.path(run.session.catalog.table(self._input))

    def begin(self, *, available_now: bool) -> None:
        """Hands the frontier on before the query starts, if no row is left to read: without one, no micro-batch would do it."""
        checkpoint = self._run.checkpoint
        done = checkpoint_files.done(checkpoint)
        if not done or checkpoint_files.begun(checkpoint)[-1] != done[-1]:
            return  # a micro-batch is run anyway
        ended = checkpoint_files.ended(checkpoint, done[-1])
        if ended is None or _unread(self._path, ended).files:
            return
        if self._run.table.kind.is_upserted:
            self._note(ended, done[-1])
        elif (not available_now or self._waits(ended)) and self._can_run_again(done[-1]):
            checkpoint_files.take_back(checkpoint, done[-1])

    def follow(self, query: StreamingQuery) -> None:
        """Hands the frontier on to a running query whenever the input goes on without rows for it."""
        threading.Thread(target=self._follow, args=(query,), daemon=True).start()

    def advance(self, offset: Mapping[str, Any]) -> None:
        """Moves the watermark, within a micro-batch, to where the input is complete by all that is read up to the offset."""
        milliseconds = self._complete(offset)
        query = self._run.spark_query()
        if milliseconds is not None and query is not None:
            _raise(query._jsq.streamingQuery(), milliseconds)

    def _follow(self, query: StreamingQuery) -> None:
        while True:
            seen = news.commits([self._input])
            try:
                if not query.isActive:
                    return
                self._advance_idle(query)
            except Exception as err:
                if not _is_active(query):
                    return
                _log.warning(
                    f"table={self._run.table.name}, input={self._input}: how far it is complete was not handed on to Spark "
                    f"({type(err).__name__}: {err}); it is tried again"
                )
            news.wait([self._input], seen, _LOOK)

    def _advance_idle(self, query: StreamingQuery) -> None:
        """Hands the frontier on between two micro-batches; a running micro-batch does so at its end."""
        checkpoint, execution = self._run.checkpoint, query._jsq.streamingQuery()
        done = checkpoint_files.done(checkpoint)
        ended = checkpoint_files.ended(checkpoint, done[-1]) if done else None
        milliseconds = None if ended is None else self._complete(ended)
        if ended is None or milliseconds is None:
            return
        lock = execution.awaitProgressLock()
        lock.lock()  # Spark begins no micro-batch meanwhile; each thread here has one of the JVM
        try:
            last = execution.lastExecution()
            if last is None or last.currentBatchId() != done[-1]:
                return
            if checkpoint_files.begun(checkpoint)[-1] != done[-1]:
                return
            if self._run.table.kind.is_upserted:
                self._note(ended, done[-1])
            elif _raise(execution, milliseconds):
                # Spark noted the watermark of the next micro-batch when it asked whether to run one
                last.watermarkPropagator().purge(last.currentBatchId() + 1)
        finally:
            lock.unlock()

    def _complete(self, offset: Mapping[str, Any]) -> int | None:
        """Returns how far the input is complete by all that is read up to the offset, in Spark's milliseconds."""
        complete = complete_at(self._run, offset)
        return None if complete is None else (complete - EPOCH) // _MILLISECOND

    def _note(self, offset: Mapping[str, Any], batch: int) -> None:
        """Writes the commit log line of a keyed table's last micro-batch again, with the present frontier if it is further."""
        last, complete = (
            next(self._run.commit_log.by_stream(), None),
            complete_at(self._run, offset),
        )
        if (
            last is None
            or complete is None
            or (last.generation, last.batch) != (self._run.generation, batch)
        ):
            return
        if last.frontier is None or complete > last.frontier:
            at = max(datetime.now(UTC), last.at)
            self._run.commit_log.append(replace(last, frontier=complete, at=at))
            news.announce(last.table)

    def _waits(self, offset: Mapping[str, Any]) -> bool:
        """Returns True if the input is complete further than the table, in the milliseconds that Spark knows."""
        complete = self._complete(offset)
        before = next(self._run.commit_log.by_stream(), None)
        start = self._run.frontier_after(before)
        # Spark's own watermark begins with 0
        return complete is not None and complete > max(0, (start - EPOCH) // _MILLISECOND)

    def _can_run_again(self, batch: int) -> bool:
        """Returns True if the state before the micro-batch and the files that it read still exist."""
        checkpoint, oldest = self._run.checkpoint, delta_log.oldest(self._path)
        ended = checkpoint_files.ended(checkpoint, batch)
        if ended is None or (batch and checkpoint_files.state_gone(checkpoint, batch - 1)):
            return False
        begun = checkpoint_files.ended(checkpoint, batch - 1) if batch else None
        if batch and begun is None:
            return False
        begin = Position.of(begun) if begun else Position(self._run.since or oldest)
        end = Position.of(ended)
        if begin == end:
            return True
        if oldest > begin.version:
            return False
        return not delta_log.missing(positions.between(self._path, begin, end).files)


def complete_at(run: StreamRun, offset: Mapping[str, Any]) -> datetime | None:
    """Returns how far the input of Spark's query is complete at an offset. Commits without rows, which it stays before, count."""
    driving = run.plan.driving
    end = _unread(run.session.path(run.session.catalog.table(driving)), offset).end
    return run.complete({driving: end.offset("")})


def _unread(path: Path, offset: Mapping[str, Any]) -> positions.Piece:
    """Returns the next file after the offset; without one, the position up to which there is none."""
    return positions.following(path, Position.of(offset), 1)


def _raise(execution: Any, milliseconds: int) -> bool:
    """Sets the watermark if it was lower, and returns True; else False."""
    tracker = execution.watermarkTracker()
    if tracker is None or milliseconds <= tracker.currentWatermark():
        return False
    tracker.setWatermark(milliseconds)
    return True


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:
        return False  # the JVM is gone, and the query with it
