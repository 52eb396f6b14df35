"""The state of a table by its Delta log: its declaration, each data file with its deletion vector, and the last batches.

deltalake does not hand out the descriptors of deletion vectors, and a commit that changes one has
to name the one before.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakehouse.errors import CommitError
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.objects import source

_OF_FILES = ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector")


@dataclass(slots=True)
class LogState:
    """The log as it was read last.

    `of_files`: False leaves the files out. `files`: by their paths as the log writes them. `batches`: the last one of each
    application. `metadata`: columns and properties, and `protocol`, as the log has them; no metadata means no table.
    `declared`: how often the commits that were applied one by one declared columns or properties. `checkpoint`: the last
    of Delta's that this process knows of, -1 if none.
    """

    path: Path
    of_files: bool = True
    version: int = -1
    stamp: str = ""
    metadata: dict = field(default_factory=dict)
    protocol: dict = field(default_factory=dict)
    files: dict[str, dict] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    declared: int = 0
    checkpoint: int = -1

    def apply(self, actions: Iterable[Mapping]) -> bool:
        """Applies the actions of one commit. Returns True if they changed the files."""
        actions = list(actions)
        removed = [action["remove"]["path"] for action in actions if action.get("remove")]
        added = [action["add"] for action in actions if action.get("add")]
        # removals first: a file that gets another vector is removed with the old one, and added again
        if self.of_files:
            for name in removed:
                self.files.pop(name, None)
            self.files |= {file["path"]: _kept(file) for file in added}
        self.batches |= {
            txn["appId"]: txn["version"] for action in actions if (txn := action.get("txn"))
        }
        for action in actions:
            if "metaData" in action:
                self.metadata, self.declared = _given(action["metaData"]), self.declared + 1
            if "protocol" in action:
                self.protocol = _given(action["protocol"])
        return bool(removed or added)

    def committed(self, version: int, actions: Iterable[Mapping]) -> None:
        """Applies a commit that this process has made, unless another thread has read on meanwhile."""
        if self.version == version - 1:
            self.apply(actions)
            self.version, self.stamp = version, delta_log.stamp(self.path, version)

    @property
    def columns(self) -> list[str]:
        """Returns the names of the table's columns."""
        return [field["name"] for field in json.loads(self.metadata["schemaString"])["fields"]]

    @property
    def properties(self) -> dict[str, str]:
        return self.metadata.get("configuration") or {}


def newest(path: Path, *, of_files: bool = True) -> LogState:
    """Returns the log, read from its last checkpoint on. Raises CommitError if commits are missing."""
    state = _read(LogState(path, of_files), None)
    _check_whole(path, state.version)
    return state


def _check_whole(path: Path, read: int) -> None:
    """Raises CommitError if the log, read up to a version, has later ones and not the next."""
    # the next one may have come since
    if read < delta_log.latest(path) and delta_log.actions(path, read + 1) is None:
        raise CommitError(
            f"table={path.name}, version={read + 1}: its log lacks this commit, and has later ones; put it back"
        )


def at(path: Path, version: int) -> LogState:
    """Returns the log up to a version. Raises CommitError if it does not have that version any more."""
    state = _read(LogState(path), version)
    if state.version != version:
        raise CommitError(
            f"table={path.name}, version={version}: its log does not have this version any more"
        )
    return state


def rows(path: Path) -> int:
    """Returns the number of the table's rows, without those that are dead."""
    return sum(_living(file) for file in newest(path).files.values())


def renewed(state: LogState) -> tuple[LogState, bool]:
    """Returns the log up to now, and True if the files may differ from those in `state`."""
    if not state.stamp or state.stamp != delta_log.stamp(state.path, state.version):
        return newest(state.path, of_files=state.of_files), True
    changed = False
    for version, actions in commits(state.path, state.version + 1):
        changed |= state.apply(actions)
        state.version, state.stamp = version, delta_log.stamp(state.path, version)
    return state, changed


def commits(path: Path, first: int) -> Iterator[tuple[int, list[dict]]]:
    """Yields the commits from a version on, as far as they follow one another."""
    version = first
    while (actions := delta_log.actions(path, version)) is not None:
        yield version, actions
        version += 1


def files_at(path: Path, version: int) -> list[dict]:
    """Returns the data files of that version. Raises CommitError as `at`."""
    return list(at(path, version).files.values())


def files_since(path: Path, oldest: int | None = None) -> list[dict]:
    """Returns the data files of `oldest`, and those that later commits added.

    `oldest`: a version with a checkpoint, or 0; by default the first that the log can give. Commits before that are
    what a cut of the log that was killed has left. Raises CommitError as `newest`.
    """
    if oldest is None:
        if not delta_log.exists(path):
            return []
        first = delta_log.oldest(path)
        checkpoints = [v for v in delta_log.checkpoints(path) if v >= first - 1]
        oldest = min(checkpoints, default=0) if first else 0
    files, read = files_at(path, oldest), oldest
    for version, actions in commits(path, oldest + 1):
        files += [action["add"] for action in actions if action.get("add")]
        read = version
    _check_whole(path, read)
    return files


def _read(state: LogState, until: int | None) -> LogState:
    path = state.path
    kept = delta_log.checkpoints(path)
    begin = max((version for version in kept if until is None or version <= until), default=-1)
    if begin >= 0:
        _take_checkpoint(state, begin)
    for version, actions in commits(path, begin + 1):
        if until is not None and version > until:
            break
        state.apply(actions)
        state.version = version
    state.stamp = delta_log.stamp(path, state.version)
    return state


def _take_checkpoint(state: LogState, version: int) -> None:
    import pyarrow.parquet as pq

    columns = ["txn", "metaData", "protocol", *(["add"] if state.of_files else [])]
    rows = pq.read_table(source(delta_log.checkpoint_file(state.path, version)), columns=columns)
    actions = {name: filter(None, rows[name].to_pylist()) for name in columns}
    # a reader may give each row a struct of nulls
    state.files = {add["path"]: _kept(add) for add in actions.get("add", ()) if add["path"]}
    batches = {txn["appId"]: txn["version"] for txn in actions["txn"]}
    state.batches = {app: batch for app, batch in batches.items() if app is not None}
    [metadata] = (of for of in actions["metaData"] if of["schemaString"])
    metadata["configuration"] = dict(metadata["configuration"])
    metadata["format"]["options"] = dict(metadata["format"]["options"] or ())
    [protocol] = (of for of in actions["protocol"] if of["minReaderVersion"])
    state.metadata, state.protocol = _given(metadata), _given(protocol)
    state.version = state.checkpoint = version


def _given(values: Mapping) -> dict:
    return {name: value for name, value in values.items() if value is not None}


def _living(file: Mapping) -> int:
    return json.loads(file.get("stats") or "{}").get("numRecords", 0) - file.get(
        "deletionVector", {}
    ).get("cardinality", 0)


def _kept(file: Mapping) -> dict:
    """Returns the part of a data file's action that a later commit has to name.

    In a checkpoint, a map is a list of pairs, and a missing value is null.
    """
    kept = _given({name: file.get(name) for name in _OF_FILES})
    vector = kept.get("deletionVector")
    if vector is not None and vector.get("storageType") is None:
        del kept["deletionVector"]
    return kept | {"partitionValues": dict(kept.get("partitionValues") or {})}
