"""The settings of a lakehouse: its place, and what it runs on. The only module that reads the environment.

Each field of `Settings` is read from `LAKEHOUSE_<FIELD>`, one of a pipeline or a table from
`LAKEHOUSE_<FIELD>__<NAME>`. A field that the environment lacks is read from `lakehouse.toml`
(`settings_values`). A process that another one starts gets all settings in `LAKEHOUSE_SETTINGS`.
"""
# pydantic-settings would read the same file and variables. Its import alone takes 0.2 s of CPU,
# where `lakehouse --help` takes 0.5 in all and this module with `settings_values` 0.07.

import hashlib
import json
import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from lakehouse import addresses, settings_values
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError, SettingsError
from lakehouse.freshness import Freshness, freshness
from lakehouse.object_paths import ObjectPath, to_path
from lakehouse.settings_values import Repair, Resources, check_local

_log = logging.getLogger(__name__)
EXAMPLES = ("lakehouse.examples.sensors.tables", "lakehouse.examples.ads.tables")
_CONFIG = "LAKEHOUSE_CONFIG"
_ALL = "LAKEHOUSE_SETTINGS"
_ROOT = "LAKEHOUSE_ROOT"
_TABLES = "LAKEHOUSE_TABLES"
_LEAST = (  # of a number: its name, the least value, and why
    ("shuffle_partitions", 1, "no micro-batch could move otherwise"),
    ("max_offsets_per_trigger", 1, "no micro-batch could move otherwise"),
    ("max_files_per_trigger", 1, "no micro-batch could move otherwise"),
    ("step_rows", 0, "with 0 Spark writes every micro-batch"),
    ("versions", 1, "the present one; raise it"),
    ("state_memory_mb", 16, "RocksDB needs so much for its buffers; raise it"),
    ("restarts", 1, "a streaming job would be in a crash loop when it first ends; raise it"),
    ("query_restarts", 0, "with 0 a query is not restarted alone"),
)
_CHOICES = {"log_level": ("debug", "info", "warning", "error"), "log_format": ("text", "json")}
_BOUNDS = (
    "fresh_within",
    "start_within",
    "heartbeat_within",
    "batch_within",
    "restarts_within",
    "healthy_after",
    "stale_after",
)
SOONEST_STALE = timedelta(minutes=5)  # ingest tables are reported to Dagster once a minute
_HEAD = 0.6  # of the freshness: between two micro-batches of an ingest table
_MEMORY = re.compile(r"\d+[kmgKMG]")


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a run needs to know of its surroundings: a value, made once at the start and handed down."""

    # tables, checkpoints, log tables, job status, broker data
    root: Path = Path(settings_values.ROOT)
    # of a root in an object store: the folder of what is of this host alone, such as logs and caches
    local: Path = Path("~/.local/state/unified-lakehouse")
    tables: tuple[str, ...] = EXAMPLES  # modules of declarations
    # folders in which modules are looked for, besides Python's own
    module_path: tuple[Path, ...] = ()
    jars: Path = Path("~/.cache/unified-lakehouse/jars")  # resolved once, shared by every checkout
    bootstrap_servers: str = ""  # empty: the embedded broker under the root
    # client properties; may hold secrets
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    # the schema registry: `url`, and properties by the names of Confluent's clients; may hold secrets
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark_master: str = "local[2]"
    batch_master: str = ""  # of batch runs that Dagster starts; empty: where the streaming jobs run, on one core if here
    # Spark properties; may hold secrets
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    driver_memory: str = "1g"
    # of RocksDB in one job, beside driver_memory; state that is larger is read from disk
    state_memory_mb: int = 512
    shuffle_partitions: int = 2
    # Spark's file of pools: the weight of each table's query; empty: all weigh the same
    scheduler_pools: str = ""
    fresh_within: str = "2 seconds"  # from arrival to a readable row in each table; steps are as rare as that allows
    # pipeline -> when its queries run, if not continuously
    freshness: Mapping[str, str] = field(default_factory=dict)
    # pipeline -> those of its own
    resources: Mapping[str, Resources] = field(default_factory=dict)
    # name -> pipelines that share one process under it
    together: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_offsets_per_trigger: int = 1_000_000  # records of a topic in one micro-batch
    max_files_per_trigger: int = 1_000  # files of a table in one micro-batch
    step_rows: int = 20_000  # of the input: a micro-batch of more is written by Spark, one of fewer by the job itself, for less
    # keep the early results that tables declare; each costs a batch run at every refresh
    early_results: bool = True
    # where `lakehouse metrics` listens; it has no authentication
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 9464  # 0: any that is free
    start_within: str = "10 minutes"  # a streaming job runs, else its process is replaced
    # between two signs of life of a streaming job, else its process is replaced
    heartbeat_within: str = "1 minute"
    batch_within: str = "10 minutes"  # for one micro-batch, else its process is replaced
    # a backfill waits while what a streaming query is to read has waited longer
    stream_lag: str = "30 seconds"
    # more than that within `restarts_within`, and a streaming job is in a crash loop
    restarts: int = 5
    restarts_within: str = "1 hour"
    healthy_after: str = "2 minutes"  # a streaming job that ran so long without a failure counts its restarts from zero
    query_restarts: int = 3  # of a query alone, before it is paused or its process ends
    stale_after: str = "30 minutes"  # a table not added to for longer is stale; derived ones may take a partition longer
    # run at failures, with what happened as JSON on its standard input
    notification_command: str = field(default="", repr=False)
    # where it is sent: by POST, or as apprise sends to mail, Slack, ...; both may hold secrets
    notification_urls: tuple[str, ...] = field(default=(), repr=False)
    # table -> so much of it may be repaired a day without being asked
    repair: Mapping[str, Repair] = field(default_factory=dict)
    history: str = "1 day"  # so far back versions of a table can be read and replayed, and files stay that none of these has
    versions: int = 1_000  # so many of them at most, unless a reader needs more: each reader of the table lists its log
    # of what the library reports while it works: debug, info, warning or error
    log_level: str = "info"
    log_format: str = "text"  # or json: one object a line
    # the first day of event time whose partitions are offered for batch runs
    since: str = "2026-01-01"

    def __post_init__(self) -> None:
        for name in ("root", "local", "jars"):
            if not isinstance(path := getattr(self, name), ObjectPath):
                check_local(name, str(path))
        self._check_times()
        self._check_notifications()
        for name, least, why in _LEAST:
            if getattr(self, name) < least:
                raise SettingsError(f"{name}={getattr(self, name)}: at least {least}; {why}")
        if not 0 <= self.metrics_port < 1 << 16:
            raise SettingsError(
                f"metrics_port={self.metrics_port}: a port is 0 (any that is free) to 65535; take another"
            )
        self._check_texts()
        for pipeline in self.freshness:
            self.freshness_of(pipeline)
        for pipeline in self.resources:
            self.for_pipeline(pipeline)
        for table, amount in self.repair.items():
            if min(amount.partitions, amount.rows) < 0:
                raise SettingsError(
                    f"repair of {table}={amount}: at least 0 partitions and rows a day; raise it"
                )
        self._check_together()

    def _check_texts(self) -> None:
        if self.scheduler_pools and not Path(self.scheduler_pools).is_file():
            raise SettingsError(
                f"scheduler_pools={self.scheduler_pools!r}: a file of Spark's pools, and there is none; write it, or remove this"
            )
        if not _MEMORY.fullmatch(self.driver_memory):
            raise SettingsError(
                f"driver_memory={self.driver_memory!r}: a number and its unit, k, m or g; write for example 2g"
            )
        for name, values in _CHOICES.items():
            if getattr(self, name) not in values:
                raise SettingsError(
                    f"{name}={getattr(self, name)!r}: one of {', '.join(values)}; set LAKEHOUSE_{name.upper()} "
                    "to one or remove it"
                )
        if not self.tables:
            raise SettingsError(
                "tables=(): at least one module of tables; set LAKEHOUSE_TABLES=my_package.my_tables"
            )

    def _check_times(self) -> None:
        try:
            date.fromisoformat(self.since)
        except ValueError as err:
            raise SettingsError(
                f"since={self.since!r}: a day, because partitions begin there; write for example 2026-01-01"
            ) from err
        for name in ("history", "stream_lag", *_BOUNDS):
            try:
                span = duration(getattr(self, name), name)
            except DeclarationError as err:
                raise SettingsError(str(err)) from err
            if name in _BOUNDS and not span:
                raise SettingsError(
                    f"{name}={getattr(self, name)!r}: longer than zero, or no job could keep to it; set a longer time"
                )
        if duration(self.stale_after) < SOONEST_STALE:
            raise SettingsError(
                f"stale_after={self.stale_after!r}: at least {SOONEST_STALE}, or every table would be stale; raise it"
            )
        if duration(self.history) < timedelta(hours=1):
            raise SettingsError(
                f"history={self.history!r}: at least 1 hour, or readers would lose files that they have listed; raise it"
            )

    @property
    def first_day(self) -> datetime:
        """Returns the instant at which `since` begins."""
        return datetime.fromisoformat(self.since).replace(tzinfo=UTC)

    @property
    def own_folder(self) -> Path:
        """Returns the folder of what is of this host alone: the root, or one of its own if that is in an object store."""
        if not isinstance(self.root, ObjectPath):
            return self.root
        name = hashlib.sha256(str(self.root).encode()).hexdigest()[:12]
        return self.local.expanduser() / f"{self.root.bucket}-{name}"

    def freshness_of(self, pipeline: str) -> Freshness:
        """Returns the freshness of a pipeline; raises SettingsError."""
        return freshness(self.freshness.get(pipeline, "continuous"), pipeline)

    def pace(self, pipeline: str) -> timedelta:
        """Returns the time between two reads of a pipeline's topics.

        A row waits half of it on average. Most of the rest of the freshness is left to the chain of tables.
        """
        return self.freshness_of(pipeline).interval or _HEAD * duration(self.fresh_within)

    def for_pipeline(self, pipeline: str) -> "Settings":
        """Returns the settings of a pipeline's streaming job, with its own resources. Raises SettingsError."""
        own = self.resources.get(pipeline, Resources()).given()
        try:
            return replace(self, resources={}, **own)
        except SettingsError as err:
            raise SettingsError(f"resources of {pipeline}: {err}") from err

    def members(self, pipeline: str) -> tuple[str, ...]:
        """Returns the declared pipelines that run in the process of that name: one, or those of `together`."""
        return self.together.get(pipeline, (pipeline,))

    def _check_together(self) -> None:
        members = [member for name in self.together for member in self.members(name)]
        if twice := sorted({member for member in members if members.count(member) > 1}):
            raise SettingsError(
                f"together, {twice[0]!r}: a pipeline runs in one process; name it once"
            )
        if empty := [name for name in self.together if not self.members(name)]:
            raise SettingsError(
                f"together of {empty[0]}=(): the pipelines that share a process; name them"
            )

    def _check_notifications(self) -> None:
        """Checks the settings of notifications. Their values may hold secrets, so no error repeats them."""
        try:
            words = shlex.split(self.notification_command)
        except ValueError as err:
            raise SettingsError(
                f"notification_command: words as a shell writes them ({err}); close the quotation"
            ) from err
        if self.notification_command and not words:
            raise SettingsError(
                "notification_command: a program and its arguments; blanks alone run nothing, so remove it"
            )
        for number, address in enumerate(self.notification_urls):
            addresses.check(f"notification_urls[{number}]", address)


def from_environment(
    environment: Mapping[str, str] | None = None, *, required: bool = True
) -> Settings:
    """Returns the settings of the environment, completed from `lakehouse.toml`.

    That is the file that LAKEHOUSE_CONFIG names, else the nearest one, here or in a folder above.
    With `required` it refuses if nothing names a lakehouse, because the tables that ship would look like
    the user's own. False is for callers that need no lakehouse, such as the place of the jars.

    Raises SettingsError with the field, the rule and the fix.
    """
    env = os.environ if environment is None else environment
    if _ALL in env:
        return _of_another_process(env[_ALL])
    types = {f.name: f.type for f in fields(Settings)}
    variables = {name: value for name, value in env.items() if name not in (_CONFIG, _ALL)}
    file = settings_file(environment)
    if environment is None and required:
        _check_named(env, file)
    in_file = settings_values.of_file(file, types) if file else {}
    values = settings_values.merged(in_file, settings_values.of_variables(variables, types))
    return _absolute(Settings(**_typed(values)))


def settings_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """Returns the file that LAKEHOUSE_CONFIG names, else the nearest `lakehouse.toml`, here or in a folder above."""
    if named := (os.environ if environment is None else environment).get(_CONFIG):
        return Path(named).expanduser().resolve()
    here = _here()
    files = (folder / settings_values.NAME for folder in (here, *here.parents))
    return next(filter(Path.is_file, files), None) if environment is None else None


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as err:
        raise SettingsError(
            "the current folder has been removed, and settings are looked for from there; cd to another one"
        ) from err


def use_examples() -> None:
    """Makes `from_environment` name the tables that ship, whatever else is set, here and in child processes."""
    os.environ[_TABLES] = ",".join(EXAMPLES)


def _check_named(env: Mapping[str, str], file: Path | None) -> None:
    """Raises SettingsError if nothing names a lakehouse; reports a file that was found above."""
    here = _here()
    if file is None and not {_TABLES, _ROOT} & env.keys():
        raise SettingsError(
            f"folder={here}: no lakehouse.toml here or above; cd to a project, make one (`lakehouse init DIRECTORY`), "
            "or take the examples (`lakehouse --examples COMMAND`)"
        )
    if file and not env.get(_CONFIG) and file.parent != here:
        _report_above(file)


@cache  # once in the life of a process, which may ask often
def _report_above(file: Path) -> None:
    _log.info(
        f"config={file}: these settings are used, because the current folder has no {file.name}"
    )


def _of_another_process(text: str) -> Settings:
    try:
        return _absolute(Settings(**_typed(json.loads(text))))
    except (ValueError, TypeError) as err:
        raise SettingsError(
            f"{_ALL}: all settings, as a command hands them to the processes that it starts ({type(err).__name__}); remove it"
        ) from err


def overridden(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Returns the settings with some replaced, in the form of `settings_values.read`; raises SettingsError."""
    return replace(settings, **_typed(values))


def values_of(settings: Settings) -> dict[str, Any]:
    """Returns the settings in the form that `overridden` takes."""
    return json.loads(to_environment(settings)[_ALL])


def to_environment(settings: Settings) -> dict[str, str]:
    """Returns the variable from which another process reads the same settings; it may hold secrets.

    The process reads nothing else, because its environment or its folder may have other settings.
    """
    return {_ALL: json.dumps(asdict(settings), default=str)}


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values in the types that JSON lacks: paths, tuples and classes."""
    return {
        name: _TYPES[name](value) if name in _TYPES else value for name, value in values.items()
    }


_TYPES: dict[str, Callable[[Any], object]] = {
    "root": to_path,
    "local": Path,
    "jars": Path,
    "tables": tuple,
    "module_path": lambda value: tuple(map(Path, value)),
    "notification_urls": tuple,
    "resources": lambda value: {name: Resources(**each) for name, each in value.items()},
    "together": lambda value: {name: tuple(each) for name, each in value.items()},
    "repair": lambda value: {name: Repair(**each) for name, each in value.items()},
}


def _absolute(settings: Settings) -> Settings:
    # a detached job and the Dagster daemon have working directories of their own
    folders = {name: getattr(settings, name) for name in ("root", "local", "jars")}
    return replace(
        settings, **{name: path.expanduser().resolve() for name, path in folders.items()}
    )


def variable(name: str) -> str | None:
    """Returns a variable of the environment that a declaration names, or an object store's own: no setting has its value."""
    return os.environ.get(name)


def java(environment: Mapping[str, str] | None = None) -> str:
    """Returns the java that PySpark's launcher would use: JAVA_HOME's, else the first on the PATH. Raises SettingsError."""
    env = os.environ if environment is None else environment
    home = env.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java", path=env.get("PATH"))
    if program is None or not os.access(program, os.X_OK):
        raise SettingsError(
            f"java={program}: Spark and Kafka run on Java 17 or newer; install one or set JAVA_HOME"
        )
    return program
