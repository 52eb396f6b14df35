"""Where the lakehouse lives and what it runs on. The only module that reads the environment.

Each field of `Settings` is read from `LAKEHOUSE_<FIELD>`; a Kafka client property from
`LAKEHOUSE_KAFKA_<PROPERTY>` with `_` for `.` (LAKEHOUSE_KAFKA_SECURITY_PROTOCOL=SASL_SSL), a Spark
property from `LAKEHOUSE_SPARK_CONF` ("key=value;key=value"); also what `LAKEHOUSE_FRESHNESS`,
`LAKEHOUSE_RESOURCES` and `LAKEHOUSE_TOGETHER` say of a pipeline. What the environment does not say
is taken from `lakehouse.toml` (`settings_file`).
"""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from lakehouse import addresses, settings_file
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError, SettingsError
from lakehouse.freshness import Freshness, freshness
from lakehouse.settings_text import PAIRS, check_local, parsed

_SECRET = ("password", "jaas", "secret", "token", "ssl.key")
_KAFKA = "LAKEHOUSE_KAFKA_"
_LEAST = (  # of a number: its name, the least value, and why
    ("shuffle_partitions", 1, "no micro-batch could move otherwise"),
    ("max_offsets_per_trigger", 1, "no micro-batch could move otherwise"),
    ("max_files_per_trigger", 1, "no micro-batch could move otherwise"),
    ("step_rows", 0, "with 0 Spark writes every micro-batch"),
    ("versions", 1, "the present one; raise it"),
    ("state_memory_mb", 16, "RocksDB needs so much for its buffers; raise it"),
    ("restarts", 1, "a streaming job would be in a crash loop when it first ends; raise it"),
    ("query_restarts", 0, "with 0 a query that fails ends its process"),
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
_NOTIFICATIONS = ("notification_command", "notification_urls")
SOONEST_STALE = timedelta(minutes=5)  # ingest tables are reported to Dagster once a minute
RESOURCES = (
    "spark_master",
    "driver_memory",
    "state_memory_mb",
    "shuffle_partitions",
    "max_offsets_per_trigger",
    "max_files_per_trigger",
    "step_rows",
    "scheduler_pools",
)
_HEAD = 0.6  # of the freshness: between two micro-batches of an ingest table
_MEMORY = re.compile(r"\d+[kmgKMG]")
_REPAIR = re.compile(r"partitions (\d+), rows (\d+)")


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a run needs to know of its surroundings.

    A value, made once at the start and handed down.
    """

    root: Path = Path(".lakehouse")  # tables, checkpoints, log tables, job status, broker data
    # modules of declarations
    tables: tuple[str, ...] = (
        "lakehouse.examples.sensors.tables",
        "lakehouse.examples.ads.tables",
    )
    # folders where these are looked for, beside those where Python looks
    module_path: tuple[Path, ...] = ()
    jars: Path = Path("~/.cache/unified-lakehouse/jars")  # resolved once, shared by every checkout
    bootstrap_servers: str = ""  # empty: the embedded broker under the root
    # client properties; may hold secrets
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
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
    # pipeline -> those of its own: "driver_memory 2g, ..."
    resources: Mapping[str, str] = field(default_factory=dict)
    # name -> pipelines that share one process under it: "a, b"
    together: Mapping[str, str] = field(default_factory=dict)
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
    restarts: int = (
        5  # more than that within `restarts_within`, and a streaming job is in a crash loop
    )
    restarts_within: str = "1 hour"
    healthy_after: str = "2 minutes"  # a streaming job that ran so long without a failure counts its restarts from zero
    query_restarts: int = 3  # of a query alone, before it is paused or its process ends
    stale_after: str = "30 minutes"  # a table not added to for longer is stale; derived ones may take a partition longer
    # run at failures, with what happened as JSON on its standard input
    notification_command: str = field(default="", repr=False)
    # where it is sent: by POST, or as apprise sends to mail, Slack, ...; both may hold secrets
    notification_urls: tuple[str, ...] = field(default=(), repr=False)
    # table -> so much of it may be repaired a day without being asked
    repair: Mapping[str, str] = field(default_factory=dict)
    history: str = "1 day"  # so far back versions of a table can be read and replayed, and files stay that none of these has
    versions: int = 1_000  # so many of them at most, unless a reader needs more: each reader of the table lists its log
    log_level: str = (
        "info"  # of what the library reports while it works: debug, info, warning or error
    )
    log_format: str = "text"  # or json: one object a line
    # the first day of event time whose partitions are offered for batch runs
    since: str = "2026-01-01"

    def __post_init__(self) -> None:
        for name in ("root", "jars"):
            check_local(name, str(getattr(self, name)))
        self._check_times()
        self._check_notifications()
        for name, least, why in _LEAST:
            if getattr(self, name) < least:
                raise SettingsError(f"{name}={getattr(self, name)}: at least {least}; {why}")
        if not 0 <= self.metrics_port < 1 << 16:
            raise SettingsError(
                f"metrics_port={self.metrics_port}: a port is 0 (any that is free) to 65535; take another"
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
        for pipeline in self.freshness:
            self.freshness_of(pipeline)
        for pipeline in self.resources:
            self.for_pipeline(pipeline)
        for table in self.repair:
            self.repair_of(table)
        self._check_together()

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
                    f"{name}={getattr(self, name)!r}: longer than nothing, or no job could keep to it; set a longer time"
                )
        if duration(self.stale_after) < SOONEST_STALE:
            raise SettingsError(
                f"stale_after={self.stale_after!r}: at least {SOONEST_STALE}, or every table would be stale; raise it"
            )
        if duration(self.history) < timedelta(hours=1):
            raise SettingsError(
                f"history={self.history!r}: at least 1 hour, or readers would lose files that they have listed; raise it"
            )

    def freshness_of(self, pipeline: str) -> Freshness:
        """When the pipeline's queries run; raises SettingsError."""
        return freshness(self.freshness.get(pipeline, "continuous"), pipeline)

    def pace(self, pipeline: str) -> timedelta:
        """The time between two looks into the topics of a pipeline.

        A row waits half of it on average, and most of the rest of the freshness is left to the
        tables behind each other.
        """
        return self.freshness_of(pipeline).interval or _HEAD * duration(self.fresh_within)

    def for_pipeline(self, pipeline: str) -> "Settings":
        """What its streaming job runs with: these, with the pipeline's own resources.

        Raises SettingsError.
        """
        own: dict[str, Any] = {}
        for part in filter(None, map(str.strip, self.resources.get(pipeline, "").split(","))):
            name, _, value = part.partition(" ")
            if name not in RESOURCES or not value.strip():
                raise SettingsError(
                    f"resources of {pipeline}, {part!r}: a setting and its value, of {', '.join(RESOURCES)}; write for example "
                    f"LAKEHOUSE_RESOURCES='{pipeline}=driver_memory 2g, spark_master local[4]'"
                )
            own[name] = parsed(name, value.strip())
        try:
            return replace(self, resources={}, **own)
        except SettingsError as err:
            raise SettingsError(f"resources of {pipeline}: {err}") from err

    def repair_of(self, table: str) -> tuple[int, int]:
        """How many partitions and rows of a table may be repaired a day without being asked.

        Raises SettingsError.
        """
        found = _REPAIR.fullmatch(self.repair.get(table, "partitions 0, rows 0"))
        if not found:
            raise SettingsError(
                f"repair of {table}, {self.repair[table]!r}: how many partitions and rows a day; write for example "
                f"LAKEHOUSE_REPAIR='{table}=partitions 24, rows 10000'"
            )
        return int(found[1]), int(found[2])

    def members(self, pipeline: str) -> tuple[str, ...]:
        """The pipelines, as they are declared, that run in the process of that name: it alone, or those of `together`."""
        return tuple(filter(None, map(str.strip, self.together.get(pipeline, pipeline).split(","))))

    def _check_together(self) -> None:
        found = [member for name in self.together for member in self.members(name)]
        if twice := sorted({member for member in found if found.count(member) > 1}):
            raise SettingsError(
                f"together, {twice[0]!r}: a pipeline runs in one process; name it once"
            )
        if empty := [name for name in self.together if not self.members(name)]:
            raise SettingsError(
                f"together of {empty[0]}: the pipelines that share a process, separated by commas; name them"
            )

    def _check_notifications(self) -> None:
        """Their values may hold secrets, so no error repeats them."""
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

    def shown(self) -> dict[str, str]:
        """The settings as text for status and logs, secrets masked."""
        plain = {
            f.name: str(getattr(self, f.name))
            for f in fields(self)
            if f.name not in ("kafka", "spark_conf", *_NOTIFICATIONS)
        }
        notifications = {name: "***" for name in _NOTIFICATIONS if getattr(self, name)}
        return (
            plain
            | notifications
            | _masked("kafka", self.kafka)
            | _masked("spark_conf", self.spark_conf)
        )


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings that the environment describes, else `lakehouse.toml`: the file that LAKEHOUSE_CONFIG names, or the one here.

    Raises SettingsError with the field, the rule and the fix.
    """
    env = os.environ if environment is None else environment
    given: dict[str, Any] = {
        name: _of_file(name, value) for name, value in _file(env, here=environment is None).items()
    }
    for f in fields(Settings):
        text = env.get(f"LAKEHOUSE_{f.name.upper()}")
        if text is not None and f.name != "kafka":
            given[f.name] = parsed(f.name, text)
    client = {
        name.removeprefix(_KAFKA).lower().replace("_", "."): value
        for name, value in env.items()
        if name.startswith(_KAFKA)
    }
    given["kafka"] = {**given.get("kafka", {}), **client}
    return _absolute(Settings(**given))


def overridden(settings: Settings, given: Mapping[str, str | dict[str, str]]) -> Settings:
    """The settings with others in their place, given by name as `settings_file` has them; raises SettingsError."""
    own: dict[str, Any] = {name: _of_file(name, value) for name, value in given.items()}
    return _absolute(replace(settings, **own))


def _absolute(settings: Settings) -> Settings:
    # a detached job and the Dagster daemon have working directories of their own
    root, jars = (path.expanduser().resolve() for path in (settings.root, settings.jars))
    return replace(settings, root=root, jars=jars)


def _file(env: Mapping[str, str], here: bool) -> dict[str, str | dict[str, str]]:
    named = env.get("LAKEHOUSE_CONFIG", "")
    path = Path(named).expanduser() if named else Path(settings_file.NAME)
    if not named and not (here and path.is_file()):
        return {}
    return settings_file.read(path.resolve(), [f.name for f in fields(Settings)])


def _of_file(name: str, value: str | dict[str, str]) -> object:
    return value if isinstance(value, dict) else parsed(name, value)


def _masked(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    return {
        f"{name}.{k}": "***" if any(s in k.lower() for s in _SECRET) else v
        for k, v in properties.items()
    }


def to_environment(settings: Settings) -> dict[str, str]:
    """The variables by which another process comes to the same settings; they may hold secrets."""
    plain = {f.name: getattr(settings, f.name) for f in fields(Settings) if f.name != "kafka"}
    plain["tables"] = ",".join(settings.tables)
    plain["notification_urls"] = " ".join(settings.notification_urls)
    plain["module_path"] = os.pathsep.join(map(str, settings.module_path))
    for name in PAIRS:
        plain[name] = ";".join(f"{k}={v}" for k, v in getattr(settings, name).items())
    client = {
        _KAFKA + key.upper().replace(".", "_"): value for key, value in settings.kafka.items()
    }
    # what a file says is in these already, and another folder may have another file
    own = {"LAKEHOUSE_CONFIG": os.devnull}
    return {f"LAKEHOUSE_{name.upper()}": str(value) for name, value in plain.items()} | client | own


def java(environment: Mapping[str, str] | None = None) -> str:
    """The java that PySpark's launcher would take: JAVA_HOME's, else the first on the PATH.

    Raises SettingsError.
    """
    env = os.environ if environment is None else environment
    home = env.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=env.get("PATH"))
    if found is None or not os.access(found, os.X_OK):
        raise SettingsError(
            f"java={found}: Spark and Kafka run on Java 17 or newer; install one or set JAVA_HOME"
        )
    return found
