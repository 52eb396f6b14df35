"""Where everything lies below the root. No other module knows.

With a root in an object store, what is of one host alone lies below `Settings.own_folder` instead: commit caches, the
files of jobs but for `epoch.json` and `lease`, notifications, broker, Spark's catalog, what a demo starts.

<root>/<layer>/<table>                  a Delta table, partitioned by hour or day of event time
<root>/<layer>/<table>__quarantine      its quarantined rows, with their reason
<root>/<layer>/<table>__early           its early results
<root>/<layer>/<table>__state           the states that its process function keeps: a folder and a note for each instant
<root>/<layer>/<table>__answers         what services answered to its lookup
<root>/<layer>/<table>__report          of a report: the files that are drawn of its partitions
<root>/_commit_log/<table>.jsonl        its commit log, a cache: it may be deleted at any moment
<root>/_commit_log/<table>.<note>       the notes beside that (`Note`)
<root>/_commit_log/<table>.*lock        held while the commit log, or such a note, is written
<root>/_commit_log/_commits             the log tables: the commit logs in Delta
<root>/_commit_log/_certificates        and the verdicts
<root>/_commit_log/.flush.lock          held while the commit logs are copied there
<root>/_checkpoints/<query>/<n>         generation n of a query of Spark's; the query has its table's name
<root>/_jobs/<pipeline>/                the files of a streaming job (`JobFile`), and <table>.failure.txt
<root>/_notifications/sent.json         which notifications were sent
<root>/_notifications/sender            held while they are sent
<root>/_locks/<table>.lock              held by the process that rewrites the table
<root>/_locks/<table>.reconcile.lock    held by the process that reconciles what is due of the table
<root>/_locks/runs/                     a file for each run that reads what is on disk now
<root>/_savepoints/<name>/              a savepoint (`SavepointFile`), and below `root` all that it holds, as it lies here
<root>/_savepoints/restoring.json       which savepoint is being restored
<root>/_savepoints/forked.json          of a fork: which lakehouse it was forked from, and where that publishes
<root>/_savepoints/.lock                held while one is created, restored or removed
<root>/_upgrades/<table>/upgrade.json   how far an upgrade of the table is
<root>/_upgrades/<table>/compared.jsonl what was compared of the two versions, a line for each partition
<root>/_upgrades/<table>/beside/        its other version: a root of its own, with links to what it reads
<root>/_upgrades/<table>/taken/         the present version, while the two are exchanged
<root>/_upgrades/<table>/gone/          what is about to be removed of them
<root>/_upgrades/<table>.lock           held while a version is filled, exchanged or removed
<root>/_published/<target>.json         up to which version a table was published there, for retention
<root>/_published/<target>/log.jsonl    of a target that acts on rows: what came of each action, and the position
<root>/_lineage.json                    up to where lineage was sent
<root>/_broker/                         the embedded Kafka broker
<root>/_warehouse/                      Spark's own catalog; nothing of ours is in it
<root>/_demo/                           the logs of what `lakehouse demo` starts
<root>/_dagster/                        the home of the demo's Dagster
"""

from pathlib import Path
from typing import Literal, get_args

from lakehouse.declare.table import Table
from lakehouse.paths import below
from lakehouse.settings import Settings

Side = Literal["", "quarantine", "early", "state", "answers"]
LogTable = Literal["_commits", "_certificates"]
Note = Literal[
    "asked_again.json",  # partitions whose lookups are asked again, until a batch run has followed
    "content.json",  # a cache: the rows of its partitions, by its log
    "declared.json",  # what its stream was begun with
    "dropped.jsonl",  # rows that Spark dropped
    "files.jsonl",  # of an ingest table: the files of its folder, or of a table of others, in the order of their records
    "generations.jsonl",  # how each generation of its stream began
    "lines.jsonl",  # commits that no Delta commit records, until they are in `_commits`
    "handover.json",  # where its batch run over history ends and its stream begins
    "reconciliation.json",  # up to which version each log was looked at
    "reconciling.json",  # a reconciliation that has given no verdict yet
    "reference.json",  # what a reference table was computed from
    "references.jsonl",  # of an ingest table: which versions of reference tables its rows see
    "repairs.jsonl",  # what was repaired
    "schemas.jsonl",  # of an ingest table: the schemas of a registry that its messages have had
    "topics.json",  # the ids of its topics
]
SavepointFile = Literal[
    "savepoint.json",  # what it is of
    "contents.jsonl",  # each file with its size and checksum
]
JobFile = Literal[
    "desired.json",  # what is wanted of the job
    "history.json",  # what was done to its process
    "actor",  # held by whoever starts or ends the process
    "epoch.json",  # who runs the pipeline
    "lease",  # held by that process, and touched every second
    "status.json",  # what the job says of itself
    "progress.jsonl",  # a line for each micro-batch
    "driver.log",  # the output of the process
]


def table_path(settings: Settings, table: Table, side: Side = "") -> Path:
    """The folder of a table, or of its side table."""
    return layer_path(settings, table.layer, f"{table.name}__{side}" if side else table.name)


def reports(settings: Settings, table: Table) -> Path:
    """The folder with a folder for each partition of a report."""
    return layer_path(settings, table.layer, f"{table.name}__report")


def report_path(settings: Settings, table: Table, partition: str) -> Path:
    """The folder of what is drawn of a partition of a report."""
    return below(reports(settings, table), partition)


def layer_path(settings: Settings, layer: str, name: str) -> Path:
    """The folder that a table of that name has in a layer, which need not be the one it is declared in."""
    return below(settings.root, layer, name)


def commit_logs(settings: Settings) -> Path:
    return settings.root / "_commit_log"


def commit_caches(settings: Settings) -> Path:
    """The folder of the commit logs, which are caches."""
    return settings.own_folder / "_commit_log"


def commit_log(settings: Settings, table: Table) -> Path:
    return below(commit_caches(settings), f"{table.name}.jsonl")


def known(settings: Settings) -> list[str]:
    """Returns the names of all tables that are on disk, declared or not."""
    sides = tuple(f"__{side}" for side in get_args(Side) if side)
    folders = (log.parent for log in settings.root.glob("*/*/_delta_log"))
    names = {folder.name for folder in folders if not folder.parent.name.startswith("_")}
    return sorted(name for name in names if not name.endswith(sides))


def note(settings: Settings, table: Table, name: Note) -> Path:
    """A file beside the table's commit log."""
    folder = commit_caches(settings) if name == "content.json" else commit_logs(settings)
    return below(folder, f"{table.name}.{name}")


def log_table(settings: Settings, name: LogTable) -> Path:
    return below(commit_logs(settings), name)


def flush_lock(settings: Settings) -> Path:
    return commit_logs(settings) / ".flush.lock"


def checkpoints(settings: Settings) -> Path:
    """The folder with a folder for each query of Spark's."""
    return settings.root / "_checkpoints"


def query_checkpoints(settings: Settings, query: str) -> Path:
    """The folder with the generations of a query."""
    return below(checkpoints(settings), query)


def job_folder(settings: Settings, pipeline: str) -> Path:
    return below(settings.own_folder / "_jobs", pipeline)


def job_file(settings: Settings, pipeline: str, name: JobFile) -> Path:
    if name in ("epoch.json", "lease"):  # by which hosts know of each other
        return below(settings.root / "_jobs", pipeline, name)
    return below(job_folder(settings, pipeline), name)


def failure_text(settings: Settings, pipeline: str, table: str) -> Path:
    """Returns the file with Spark's error of the table's last failed query."""
    return below(job_folder(settings, pipeline), f"{table}.failure.txt")


def notification_file(settings: Settings, name: Literal["sent.json", "sender"]) -> Path:
    return below(settings.own_folder / "_notifications", name)


def publish_lock(settings: Settings, table: Table) -> Path:
    return below(settings.root / "_locks", f"{table.name}.lock")


def reconcile_lock(settings: Settings, table: Table) -> Path:
    return below(settings.root / "_locks", f"{table.name}.reconcile.lock")


def read_holds(settings: Settings) -> Path:
    return settings.root / "_locks" / "runs"


def savepoints(settings: Settings) -> Path:
    """The folder with a folder for each savepoint."""
    return settings.root / "_savepoints"


def savepoint(settings: Settings, name: str) -> Path:
    return below(savepoints(settings), name)


def savepoint_root(settings: Settings, name: str) -> Path:
    """The root of a savepoint: tables, commit logs and checkpoints lie there as below any root."""
    return savepoint(settings, name) / "root"


def savepoint_file(settings: Settings, name: str, file: SavepointFile) -> Path:
    return below(savepoint(settings, name), file)


def restoring(settings: Settings) -> Path:
    return savepoints(settings) / "restoring.json"


def forked(settings: Settings) -> Path:
    return savepoints(settings) / "forked.json"


def savepoints_lock(settings: Settings) -> Path:
    return savepoints(settings) / ".lock"


def upgrades(settings: Settings) -> Path:
    """The folder with a folder for each table that has another version beside it."""
    return settings.root / "_upgrades"


def upgrade(
    settings: Settings,
    name: str,
    part: Literal["upgrade.json", "compared.jsonl", "beside", "taken", "gone"],
) -> Path:
    return below(upgrades(settings), name, part)


def upgraded(settings: Settings) -> list[str]:
    """The names of the tables that have another version beside them, declared or not."""
    return sorted(path.parent.name for path in upgrades(settings).glob("*/upgrade.json"))


def beside_path(settings: Settings, table: Table) -> Path:
    """The folder of the version beside a table."""
    return below(upgrade(settings, table.name, "beside"), table.layer, table.name)


def upgrade_lock(settings: Settings, name: str) -> Path:
    return below(upgrades(settings), f"{name}.lock")


def notes_of(settings: Settings, name: str) -> list[Path]:
    """The commit log of the table of that name, and the notes beside it, as far as they are there."""
    paths = (below(commit_logs(settings), f"{name}.{each}") for each in ("jsonl", *get_args(Note)))
    return [path for path in paths if path.exists()]


def published(settings: Settings, target: str) -> Path:
    return below(settings.root / "_published", f"{target}.json")


def actions(
    settings: Settings, target: str, file: Literal["log.jsonl", "epoch.json", "lock"]
) -> Path:
    return below(settings.root / "_published", target, file)


def lineage(settings: Settings) -> Path:
    return settings.root / "_lineage.json"


def broker(settings: Settings) -> Path:
    return settings.own_folder / "_broker"


def warehouse(settings: Settings) -> Path:
    return settings.own_folder / "_warehouse"


def demo_logs(settings: Settings) -> Path:
    return settings.own_folder / "_demo"


def dagster_home(settings: Settings) -> Path:
    return settings.own_folder / "_dagster"
