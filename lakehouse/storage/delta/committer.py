"""The one function that commits: the next version of a table is a file of its log that is not there yet.

What this process knows of a log is read on by the commits that came since, so that nothing is listed: but for the
checkpoint, once in `CHECKPOINTS` commits or more. Writers of several processes need no lock: of two that make one version the
second looks at what the first has changed, and tries the next.
"""

import json
import logging
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lakehouse.errors import CommitError
from lakehouse.object_paths import ObjectPath
from lakehouse.storage.delta import delta_log, log_state, recent_commits
from lakehouse.storage.delta.log_state import LogState

if TYPE_CHECKING:
    from deltalake import CommitProperties, Transaction

_log = logging.getLogger(__name__)

# seconds: of three writers that commit without a pause one was seen to lose 98 times in a row, for 7 s
PATIENCE = 60.0
# the fewest commits from one of Delta's checkpoints to the next, unless the table has its own number
CHECKPOINTS = 50
# times as many are the most: so many files of the log a reader reads beside the checkpoint
_RAREST = 10
# part of the last checkpoint's bytes that the log since then has to outweigh: a table of 20,000 files would write
# 50 times as much by checkpoints as by commits
_OUTWEIGHED = 0.5
# features of Delta that a commit need not care for, or only if a property or a column asks for them
_KEPT = {"appendOnly", "deletionVectors", "invariants", "timestampNtz", "variantType"}
_ASKED_BY = {
    "allowColumnDefaults": '"CURRENT_DEFAULT"',
    "changeDataFeed": '"delta.enableChangeDataFeed": "true"',
    "checkConstraints": '"delta.constraints.',
    "columnMapping": '"delta.columnMapping.mode": "',
    "generatedColumns": '"delta.generationExpression"',
    "identityColumns": '"delta.identity.',
    "inCommitTimestamp": '"delta.enableInCommitTimestamps": "true"',
    "rowTracking": '"delta.enableRowTracking": "true"',
}
_LEGACY = {
    3: "checkConstraints",
    4: "changeDataFeed generatedColumns",
    5: "columnMapping",
    6: "identityColumns",
}

# the log of each table as it was read last, without its files
_heads: dict[Path, LogState] = {}
_renewed: dict[Path, float] = {}  # when that was, of a table in an object store
_MOMENT = 5.0  # seconds
# of each table: the applications of the fences that this process is within, each with the epoch of this process
_fences: dict[Path, dict[str, int]] = defaultdict(dict)
_lock = threading.Lock()


def commit(
    log: Callable[[], LogState],
    change: Callable[[LogState], Sequence[Mapping]],
    metadata: str,
    batch: tuple[str, int] | None = None,
    **info: Any,
) -> int:
    """Makes the next version of a table, and returns it.

    :param log: returns the log up to now, to which the commit is then applied. It is asked again if another writer was faster.
    :param change: returns the actions that follow from the log. What it raises ends the commit.
    :param metadata: is noted with the commit (`userMetadata`); nothing is if it is empty.
    :param batch: an application and its batch, which the commit records as the application's last.
    :param info: more of the commit's `commitInfo`.

    Raises CommitError if the application has committed that batch before, if another process has taken the table over, if
    the table asks for what is not kept here, or if other writers do not pause.
    """
    nonce, end = str(uuid.uuid4()), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        state = log()
        read = state.version  # before it is judged: another thread may move it on
        _check_kept(state)
        _check_fence(state)
        transaction = _transaction(state, *batch) if batch else []
        actions = [_info(read, metadata, info | {"txnId": nonce}), *transaction, *change(state)]
        _check_removals(state, actions)
        if not _make(state.path, read + 1, actions, nonce):
            _renewed.pop(state.path, None)  # another writer was faster
            continue
        state.committed(read + 1, actions)
        if _is_checkpoint_due(state, read + 1):
            _checkpoint(state)
        return read + 1
    raise CommitError(
        f"table={state.path.name}: other writers have committed for {PATIENCE:.0f} s without a pause; end them, and run "
        "this again"
    )


def create(path: Path, protocol: Mapping, metadata: Mapping) -> None:
    """Makes a table by its version 0. One that is there stays, also if another process makes it at the same time."""
    nonce = str(uuid.uuid4())
    about = {"operation": "CREATE TABLE", "operationParameters": {}, "txnId": nonce}
    delta_log.folder(path).mkdir(parents=True, exist_ok=True)
    forget(path)
    _make(path, 0, [_info(-1, "", about), {"protocol": protocol}, {"metaData": metadata}], nonce)


def take_over(path: Path, name: str) -> None:
    """Makes this process the only one that commits to a table under that name, by a commit that raises the table's epoch.

    A process that took it over before, and slept since, is refused its next commit, wherever it slept: no clock and no
    lock decides. Raises CommitError if another process takes it over at the same time.
    """
    leave(path, name)
    _renewed.pop(path, None)
    # a table that was put back has an older epoch, and none may come again that a process has that slept since
    app, epoch = _fence(name), max(_epoch(path, name) + 1, now())
    commit(partial(head, path), lambda _: [], "", (app, epoch), operation="TAKE OVER")
    _fences[path][app] = epoch


def join(path: Path, name: str) -> None:
    """Makes this process one that commits to a table under that name until another takes it over."""
    _fences[path][_fence(name)] = _epoch(path, name)


def leave(path: Path, name: str) -> None:
    """Ends what `take_over` or `join` began: this process may commit to the table otherwise."""
    _fences[path].pop(_fence(name), None)


def check(path: Path) -> None:
    """Raises CommitError if another process has taken the table over from this one."""
    _renewed.pop(path, None)
    _check_fence(head(path))


@contextmanager
def by_deltalake(path: Path, *transactions: "Transaction") -> Iterator["CommitProperties"]:
    """Gives the properties of a commit that deltalake makes: an error of one that has landed all the same is none.

    It is made beside the fences, so it may only add rows that no other process adds, or move rows to other files: deltalake
    refuses that if one of the files has gone. Raises CommitError as `check`.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import DeltaError

    check(path)
    nonce, first = str(uuid.uuid4()), delta_log.latest(path) + 1
    try:
        yield CommitProperties(
            custom_metadata={"nonce": nonce}, app_transactions=[*transactions] or None
        )
    except (DeltaError, OSError):
        later = range(first, delta_log.latest(path) + 1)
        if not any(_nonce(path, version, "nonce") == nonce for version in later):
            raise


def head(path: Path) -> LogState:
    """Returns the log up to now without the table's files, as this process knows it. Raises CommitError as `log_state.newest`.

    In an object store it may be that of a moment ago: a commit that another process has made since is found by the next.
    """
    with _lock:
        if time.monotonic() - _renewed.get(path, float("-inf")) < _MOMENT:
            return _heads[path]
        state, _ = log_state.renewed(_heads.get(path) or LogState(path, of_files=False))
        _heads[path] = state
        if isinstance(path, ObjectPath):
            _renewed[path] = time.monotonic()
        return state


def forget(path: Path) -> None:
    """Lets go of what is known of the table, as a process does that ends."""
    with _lock:
        _heads.pop(path, None)
        _renewed.pop(path, None)


def new_name() -> str:
    """Returns the name of a data file that is yet to be written, as Spark names its own."""
    return f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"


def new_file(
    path: Path, name: str, stats: Mapping, partition: Mapping | None = None, size: int = 0
) -> dict:
    """Returns a data file that is written, and that no commit has, as one will name it (`add`). `size`: 0 if not known."""
    return {
        "path": quote(name, safe="/="),
        "partitionValues": partition or {},
        "size": size or (path / name).stat().st_size,
        "modificationTime": now(),
        "dataChange": True,
        "stats": json.dumps(stats),
    }


def removal(file: Mapping) -> dict:
    """Returns the action that removes a file, as the log names it.

    It names the vector, too: a file with another vector is another one to Delta.
    """
    named = ("path", "partitionValues", "size", "deletionVector")
    about = {"deletionTimestamp": now(), "dataChange": True, "extendedFileMetadata": True}
    return {"remove": about | {name: file[name] for name in named if name in file}}


def now() -> int:
    """Returns the time in milliseconds, as Delta notes it."""
    return time.time_ns() // 1_000_000


def _transaction(state: LogState, app: str, batch: int) -> list[dict]:
    last = state.batches.get(app, -1)
    if last >= batch:
        raise CommitError(
            f"table={state.path.name}, batch={batch}: {app} has committed batch {last} already, so another process writes the "
            "table, too; end one of them"
        )
    return [{"txn": {"appId": app, "version": batch, "lastUpdated": now()}}]


def _check_kept(state: LogState) -> None:
    """Raises CommitError without a table, or if its writers have to keep a feature of Delta that is not kept here."""
    if not state.metadata:
        raise CommitError(
            f"table={state.path.name}: there is none, so it has been removed; start what writes it again"
        )
    asked = json.dumps([state.properties, state.metadata["schemaString"]])
    asked = asked.replace('\\"', '"').replace('"delta.columnMapping.mode": "none"', "")
    features = set(state.protocol.get("writerFeatures") or ())
    for version, names in _LEGACY.items():
        if version <= state.protocol.get("minWriterVersion", 2) < 7:
            features.update(names.split())
    idle = {name for name, text in _ASKED_BY.items() if text not in asked}
    if others := sorted(features - idle - _KEPT):
        raise CommitError(
            f"table={state.path.name}: it has {', '.join(others)}, which commits here do not keep; drop the feature "
            "(ALTER TABLE ... DROP FEATURE), or its property"
        )


def _fence(name: str) -> str:
    return f"fence:{name}"


def _epoch(path: Path, name: str) -> int:
    return head(path).batches.get(_fence(name), 0)


def _check_fence(state: LogState) -> None:
    for app, epoch in [*_fences[state.path].items()]:
        if (last := state.batches.get(app, 0)) > epoch:
            raise CommitError(
                f"table={state.path.name}, epoch={epoch}: another process has taken it over (epoch {last}); this one writes no "
                "more"
            )


def _check_removals(state: LogState, actions: Sequence[Mapping]) -> None:
    removes = any("remove" in action and action["remove"]["dataChange"] for action in actions)
    if removes and state.properties.get("delta.appendOnly") == "true":
        raise CommitError(
            f"table={state.path.name}, delta.appendOnly=true: rows are only added to it, and this commit replaces some; take "
            "the property off"
        )


def _make(path: Path, version: int, actions: Sequence[Mapping], nonce: str) -> bool:
    """Makes the commit if that version is not there yet. After an error, or if it is there, its nonce says whose it is."""
    try:
        return _create(path, version, actions) or _nonce(path, version) == nonce
    except OSError:
        if _nonce(path, version) != nonce:
            raise
        return True


def _nonce(path: Path, version: int, name: str = "txnId") -> str:
    return (delta_log.commit_info(path, version) or {}).get(name, "")


def _create(path: Path, version: int, actions: Sequence[Mapping]) -> bool:
    """Writes the commit if that version is not there yet: whole or not at all."""
    file = delta_log.commit_file(path, version)
    content = "\n".join(json.dumps(action) for action in actions) + "\n"
    if isinstance(file, ObjectPath):
        made = file.create(content.encode())
        if made is not None:
            recent_commits.written(file, content.encode(), made)
        return made is not None
    beside = file.with_name(f".{version:020}.{uuid.uuid4()}.tmp")
    try:
        beside.write_text(content)
        os.link(beside, file)
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    return True


def _is_checkpoint_due(state: LogState, version: int) -> bool:
    interval = int(state.properties.get("delta.checkpointInterval", CHECKPOINTS))
    if version % interval:
        return False
    last = state.checkpoint
    if last < 0 or version - last >= interval * _RAREST:
        return True
    since = (delta_log.commit_file(state.path, number) for number in range(last + 1, version + 1))
    try:
        whole = delta_log.checkpoint_file(state.path, last).stat().st_size
        return sum(file.stat().st_size for file in since) >= whole * _OUTWEIGHED
    except FileNotFoundError:  # the log was cut behind a later one
        return True


def _checkpoint(state: LogState) -> None:
    """Makes one of Delta's checkpoints. One that cannot be made costs readers time, and the commit before it stands."""
    from deltalake.exceptions import DeltaError

    try:
        table = delta_log.open_table(state.path)
        table.create_checkpoint()
        state.checkpoint = table.version()
        if "delta.logRetentionDuration" in state.properties:
            table.cleanup_metadata()
    except (DeltaError, OSError) as err:
        _log.warning(
            f"table={state.path.name}, version={state.version}: no checkpoint of its log could be made ({err}); the next one is "
            "tried in time"
        )


def _info(read: int, metadata: str, more: Mapping[str, Any]) -> dict:
    return {
        "commitInfo": {
            "timestamp": now(),
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            **({"readVersion": read} if read >= 0 else {}),
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            **({"userMetadata": metadata} if metadata else {}),
            "engineInfo": delta_log.ENGINE,
            **more,
        }
    }
