"""The service of a lookup: many questions at once, each with a time-out and retries, and a cache of answers."""

import asyncio
import inspect
import queue
import random
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lakehouse.backoff import Backoff
from lakehouse.declare.lookups import Lookup
from lakehouse.errors import LookupFailed

Key = tuple[Any, ...]
Value = Mapping[str, Any] | None
_PAUSES = Backoff(0.1, 10.0)
_LOT, _LONGEST = 1_000, 2.0  # answers, and seconds, that are handed over at once at most
_LOOK = 0.1  # seconds between two looks whether it is to end
_KEPT = 100_000  # answers in the cache
_MEASURED = 1_000  # answers whose time is remembered
_CUT = 300  # characters of what a service says that it failed with


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one question; `failure` is empty if it was answered, with a value or with "there is none"."""

    value: Value
    failure: str
    asked: datetime
    seconds: float  # of the last attempt
    attempts: int


@dataclass(slots=True)
class Counts:
    """The counts of questions since the process started."""

    asked: int = 0  # answered or failed
    failed: int = 0
    cached: int = 0  # answered from the cache
    waiting: int = 0  # not answered yet
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED))

    def shown(self) -> dict[str, float]:
        """Returns the counts by name, with the median and the 99th percentile of the last thousand answers' seconds."""
        times = sorted(self.times) or [0.0]
        return {
            "asked": self.asked,
            "failed": self.failed,
            "cached": self.cached,
            "waiting": self.waiting,
            "p50": round(times[len(times) // 2], 3),
            "p99": round(times[len(times) * 99 // 100], 3),
        }


class Service:
    """Asks for one table; by one thread at a time.

    `checked` makes an answer of the declared columns of the function's result, or raises.
    """

    def __init__(self, lookup: Lookup, checked: Callable[[object], Value]) -> None:
        self.lookup, self.counts = lookup, Counts()
        self._checked = checked
        self._kept: OrderedDict[Key, tuple[float, Answer]] = OrderedDict()
        self._ending = threading.Event()

    def stop(self) -> None:
        """Ends a thread that asks, with a LookupFailed."""
        self._ending.set()

    def ask(self, keys: Sequence[Key], *, fresh: bool = False) -> Iterator[dict[Key, Answer]]:
        """Yields the answers for distinct keys, some at a time as they come; if `fresh`, none from the cache.

        Raises LookupFailed if it is to end before all are there.
        """
        cached = {} if fresh else {key: answer for key in keys if (answer := self._cached(key))}
        if cached:
            self.counts.cached += len(cached)
            yield cached
        asked = [key for key in keys if key not in cached]
        came: queue.SimpleQueue[tuple[Key, Answer]] = queue.SimpleQueue()
        asking = asyncio.run_coroutine_threadsafe(self._all(asked, came.put), _loop())
        self.counts.waiting = len(asked)
        try:
            while self.counts.waiting:
                yield self._lot(came, asking)
        finally:
            asking.cancel()
            self.counts.waiting = 0

    def _lot(self, came: "queue.SimpleQueue[tuple[Key, Answer]]", asking: Any) -> dict[Key, Answer]:
        """Returns the next answers, as many as come within a while, or none."""
        answers: dict[Key, Answer] = {}
        until = time.monotonic() + _LONGEST
        while self.counts.waiting and len(answers) < _LOT and time.monotonic() < until:
            if self._ending.is_set():
                raise LookupFailed(
                    f"lookup={self.lookup.name}: the stream is stopped; it is asked again by the next"
                )
            try:
                key, answer = came.get(timeout=_LOOK)
            except queue.Empty:
                if asking.done() and came.empty():
                    asking.result()  # raises what went wrong here
                continue
            answers[key] = answer
            self._count(key, answer)
        return answers

    def _count(self, key: Key, answer: Answer) -> None:
        self.counts.waiting -= 1
        self.counts.asked += 1
        self.counts.failed += bool(answer.failure)
        self.counts.times.append(answer.seconds)
        if self.lookup.cache_for and not answer.failure:
            self._kept[key] = time.monotonic(), answer
            self._kept.move_to_end(key)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def _cached(self, key: Key) -> Answer | None:
        since, answer = self._kept.get(key, (0.0, None))
        if answer and time.monotonic() - since <= self.lookup.cache_for.total_seconds():
            return answer
        return None

    async def _all(self, keys: Sequence[Key], put: Callable[[tuple[Key, Answer]], None]) -> None:
        left = iter(keys)

        async def work() -> None:
            for key in left:  # the next that no other has taken
                put((key, await self._one(key)))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.lookup.concurrency, len(keys))):
                group.create_task(work())

    async def _one(self, key: Key) -> Answer:
        limit = self.lookup.timeout.total_seconds()
        for attempt in range(1, self.lookup.retries + 2):
            asked, started, value, failure = datetime.now(UTC), time.monotonic(), None, ""
            try:
                async with asyncio.timeout(limit):
                    value = self._checked(await self._called(key))
            except TimeoutError as err:
                failure = _said(err) if str(err) else f"no answer within {limit:g} s"
            except Exception as err:
                failure = _said(err)
            answer = Answer(value, failure, asked, time.monotonic() - started, attempt)
            if not failure:
                break
            if attempt <= self.lookup.retries:
                # not all at once, where many have failed at once
                await asyncio.sleep(_PAUSES.after(attempt) * random.uniform(0.5, 1))
        return answer

    async def _called(self, key: Key) -> object:
        if inspect.iscoroutinefunction(self.lookup.function):
            try:
                return await self.lookup.function(*key)
            except (SystemExit, KeyboardInterrupt) as err:  # which would end the loop
                raise RuntimeError(repr(err)) from err
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()

        def settle(outcome: Callable[[], None]) -> None:
            if not done.done():  # else it has timed out
                outcome()

        def run() -> None:
            try:
                value = self.lookup.function(*key)
                loop.call_soon_threadsafe(settle, lambda: done.set_result(value))
            except BaseException as err:
                # what a future does not take, either
                odd = not isinstance(err, Exception) or isinstance(err, StopIteration)
                failed = RuntimeError(repr(err)) if odd else err
                loop.call_soon_threadsafe(settle, lambda: done.set_exception(failed))

        # a daemon: one that hangs does not keep the process
        threading.Thread(target=run, name=f"lookup {self.lookup.name}", daemon=True).start()
        return await done


def _said(err: Exception) -> str:
    text = " ".join(str(err).split())
    return f"{type(err).__name__}: {text}"[:_CUT] if text else type(err).__name__


_starting = threading.Lock()
_running: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of this process, for clients that are made once and stay with theirs."""
    with _starting:
        if not _running:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="lookups", daemon=True).start()
            _running.append(loop)
    return _running[0]
