"""Redis as a target: a key for each row of a table. A version's keys and the position are one MULTI ... EXEC.

balances:a                      a hash with the row's columns, or its JSON
lakehouse-position:balances     a hash: epoch, position, and the columns as they were written last
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lakehouse.declare.inputs.source_checks import one_of
from lakehouse.declare.targets import Corrections, Position, RowChange, Sink, Target, columns_of
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks import base
from lakehouse.sinks.base import Meaning
from lakehouse.sinks.formats.encoding import key_of, text_of, value_of
from lakehouse.sinks.formats.kinds import kind_of

if TYPE_CHECKING:
    import pyarrow as pa
    import redis

Format = Literal["hash", "json"]
_SCHEMES = ("redis://", "rediss://", "unix://")
_SCANNED = 1_000  # keys that are read at once
_WITHIN = 30.0  # seconds for an answer
_FOREIGN = "a value of another type"  # no row is written so
# kinds of columns whose values are written as JSON has them; the others are text as it is
_AS_JSON = ("boolean", "int64", "integer", "float32", "floating", "list", "map", "struct")


@dataclass(frozen=True, slots=True)
class RedisKeys(Target):
    """Keys of Redis, each with the row of a table."""

    symbol: ClassVar[str] = "redis"
    prefix: str
    url: str = field(repr=False)
    format: Format

    @property
    def place(self) -> str:
        return f"redis {self.url} {self.prefix}:"

    def sink(self, settings: Settings, table: str) -> "RedisSink":
        return RedisSink(self)


def redis_keys(
    prefix: str,
    *,
    key: str | Sequence[str],
    format: Format = "hash",
    url: str = "redis://localhost:6379/0",
    name: str = "",
    corrections: Corrections = "send",
) -> RedisKeys:
    """Keys of Redis to which a table is published: `publish=[redis_keys(...)]`.

        @keyed_table(layer="gold", keys=["account"], publish=[redis_keys("balances", key="account")])
        def balances(payment_events: DataFrame) -> DataFrame: ...

    The row of account `a` is at `balances:a`. Each version of the table is one transaction.

    :param prefix: of the keys; a colon follows it. All keys with it belong to the target.
    :param key: the columns that identify a row: the text of one, or a JSON object of several.
    :param format: "hash", a field for each column that is not null, or "json", a text with the row as JSON.
    :param url: `redis://`, `rediss://` or `unix://`, with user and password where the server asks for them. `${NAME}` is the
        variable of that name in the environment of the follower. It is one server, not a cluster.
    :param name: names the target in commands. Default: `prefix`.
    :param corrections: "send", "hold" or "ignore" what changes rows that were final before.
    :raises DeclarationError: for values that cannot be used.
    """
    one_of("format", format, ("hash", "json"))
    if not prefix:
        raise DeclarationError(
            "prefix='': a prefix of the keys that belong to the target; give one"
        )
    if not url.startswith(_SCHEMES):
        raise DeclarationError(
            f"target={name or prefix}, url: it begins with one of {', '.join(_SCHEMES)}; write for example redis://localhost:6379/0"
        )
    return RedisKeys(name or prefix, columns_of(key), corrections, prefix, url, format)


class RedisSink(Sink):
    """Writes a table to Redis."""

    def __init__(self, target: RedisKeys) -> None:
        self._target = target
        self._named = f"target={target.name}"
        self._place = f"lakehouse-position:{target.name}"
        self._known: redis.Redis | None = None
        self._epoch = 0
        self._last: str | None = None  # the position as this process knows it
        self._columns = "[]"
        self._pending: dict[str, RowChange] = {}

    def open(self) -> None:
        with self._failing("taking it over"):
            self._epoch = self._redis.hincrby(self._place, "epoch", 1)
            self._last, columns = self._redis.hmget(self._place, "position", "columns")
            self._columns = columns or "[]"

    def position(self) -> Position | None:
        with self._failing("reading its position"):
            text = self._redis.hget(self._place, "position")
            foreign = "" if text else next(self._scanned(), "")
        if foreign:  # keys that have left the table would never be removed
            raise SinkError(
                f"{self._named}: the server has keys with its prefix ({foreign}), and {self._place} has no position; take "
                f"another prefix, or `lakehouse reconcile sink {self._target.name} --repair`, to remove what the table lacks"
            )
        return base.position_of(self._target.name, self._place, text or None)

    def columns(self, schema: "pa.Schema") -> None:
        self._columns = json.dumps([[f.name, kind_of(f.type) in _AS_JSON] for f in schema])

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        for change in changes:  # of a key the last one counts
            self._pending[key_of(change.row, self._target.key)] = change

    def commit(self, position: Position) -> None:
        import redis

        with (
            self._failing(f"committing version {position.version}"),
            self._redis.pipeline() as together,
        ):
            together.watch(self._place)
            epoch, last = together.hmget(self._place, "epoch", "position")
            if epoch is None:
                raise SinkAway(
                    f"{self._named}: {self._place} was removed, as by FLUSHDB or an eviction; the follower looks at what is left"
                )
            if int(epoch) != self._epoch:
                raise base.replaced(self._named)
            if last != self._last:
                raise SinkAway(
                    f"{self._named}: the server has gone back to {last or 'nothing'}; the follower goes on from there"
                )
            together.multi()
            for key, change in self._pending.items():
                _put(together, f"{self._target.prefix}:{key}", change, self._target.format)
            text = position.to_json()
            together.hset(self._place, mapping={"position": text, "columns": self._columns})
            try:
                together.execute()
            except redis.WatchError as err:
                raise base.replaced(self._named) from err
        self._last, self._pending = text, {}

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        with self._failing("reading it"):
            columns = json.loads(self._redis.hget(self._place, "columns") or "[]")
            names = sorted(set(self._scanned()))  # a scan may give a key more than once
            for first in range(0, len(names), _SCANNED):
                some = names[first : first + _SCANNED]
                for name, value in zip(some, self._values(some, columns), strict=True):
                    if value is not None:
                        yield name[len(self._target.prefix) + 1 :], value or _FOREIGN, bool(value)

    def close(self) -> None:
        if self._known:
            self._known.close()

    @property
    def _redis(self) -> Any:
        """The client, made when it is needed first. It repeats nothing: the first attempt may have been done."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        if self._known is None:
            self._known = redis.Redis.from_url(
                base.filled(self._target.name, self._target.url),
                decode_responses=True,
                encoding_errors="surrogateescape",
                retry=Retry(NoBackoff(), 0),
                socket_timeout=_WITHIN,
                socket_connect_timeout=_WITHIN,
            )
        return self._known

    def _scanned(self) -> Iterator[str]:
        """Returns the keys with the prefix, maybe some of them twice."""
        # some characters have a meaning in a pattern of Redis
        prefix = re.sub(r"([\\*?\[\]^])", r"\\\1", self._target.prefix)
        return self._redis.scan_iter(f"{prefix}:*", count=_SCANNED)

    def _values(
        self, names: Sequence[str], columns: Sequence[tuple[str, bool]]
    ) -> Iterator[str | None]:
        """Yields the row of each key as `encoding` writes it; empty for a value that is none, None for a key that went."""
        with self._redis.pipeline(transaction=False) as asked:
            read = asked.hgetall if self._target.format == "hash" else asked.get
            for name in names:
                read(name)
            answers = asked.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, dict) and answer:
                yield _row(answer, columns)
            elif not isinstance(answer, Exception):
                yield answer or None
            elif str(answer).startswith("WRONGTYPE"):
                yield ""
            else:
                raise answer

    def _failing(self, doing: str) -> AbstractContextManager[None]:
        """Raises what an error of the client means. Nothing of the transaction stays."""
        import redis

        where = f"{self._named}, {doing}"
        errors = (redis.RedisError, OSError)
        return base.translated(errors, lambda err: base.failure(where, _meaning(err), err))


def _meaning(err: Exception) -> Meaning:
    import redis

    if isinstance(err, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return "refused"
    away = (
        redis.ConnectionError,
        redis.TimeoutError,
        redis.ReadOnlyError,  # a server that has become a replica
        redis.OutOfMemoryError,
        OSError,
    )
    return "away" if isinstance(err, away) else "failed"


def _put(together: Any, name: str, change: RowChange, format: Format) -> None:
    if format == "json" and change.kind != "delete":
        together.set(name, value_of(change.row))
        return
    together.delete(name)
    if change.kind != "delete":
        fields = {n: text_of(value) for n, value in change.row.items() if value is not None}
        together.hset(name, mapping=fields)


def _row(fields: dict[str, str], columns: Sequence[tuple[str, bool]]) -> str:
    """Returns the row of a hash as `encoding` writes it. Fields that somebody else added come last."""
    row: dict[str, object] = {}
    for name, is_json in columns:
        if (text := fields.pop(name, None)) is None:
            continue
        try:
            row[name] = json.loads(text) if is_json else text
        except ValueError:
            row[name] = text
    return value_of(row | fields)
