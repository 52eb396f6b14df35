"""The graph of sources and tables: loaded from the modules that the settings name, checked, in order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from graphlib import CycleError, TopologicalSorter
from types import ModuleType
from typing import Any

from lakehouse.declare import rules
from lakehouse.declare.columns import WINDOW, WINDOW_TIME
from lakehouse.declare.inputs.files import FileSource
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.sources import RecordSource, Source
from lakehouse.declare.modules import imported, pipeline_of
from lakehouse.declare.remarks import check_all
from lakehouse.declare.table import Table
from lakehouse.declare.targets import Target
from lakehouse.errors import DeclarationError, RangeError, SettingsError, UnknownTable
from lakehouse.settings import Settings


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every source and table by name; tables in an order in which each comes after its inputs."""

    sources: dict[str, Source]
    tables: dict[str, Table]
    # `plan.stored_schema`'s own
    schemas: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)
    # `plan.plan_of`'s own
    plans: dict[tuple[str, bool], Any] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    def __iter__(self) -> Iterator[Table]:
        return iter(self.tables.values())

    def table(self, name: str) -> Table:
        """The table of that name; raises UnknownTable with the nearest names."""
        if name not in self.tables:
            near = get_close_matches(name, self.tables) or sorted(self.tables)
            raise UnknownTable(
                f"table={name!r}: no module declares it (LAKEHOUSE_TABLES); did you mean {', '.join(near)}?"
            )
        return self.tables[name]

    def sources_of(self, table: Table) -> dict[str, RecordSource]:
        """What an ingest table reads, by input name, a topic's history beside it; empty for every other table."""
        declared = {name: self.sources[name] for name in table.inputs if name in self.sources}
        return dict(read for name, source in declared.items() for read in source.read_by(name))

    def topics_of(self, table: Table) -> dict[str, KafkaSource]:
        """The topics that an ingest table reads, by input name; empty for every other table."""
        reads = self.sources_of(table)
        return {name: source for name, source in reads.items() if isinstance(source, KafkaSource)}

    def files_of(self, table: Table) -> dict[str, FileSource]:
        """The files that a table reads whole, by input name: a reference table alone may."""
        named = {name: self.sources.get(name) for name in table.inputs}
        return {name: source for name, source in named.items() if isinstance(source, FileSource)}

    def driving_input(self, table: Table) -> Table | None:
        """The first input table with event time, by which rows are placed; None for ingest and reference tables."""
        return next(iter(self.timed_inputs(table)), None)

    def timed_inputs(self, table: Table) -> list[Table]:
        """The input tables with event time, which the stream follows: it goes as far as all of them have come."""
        inputs = [self.tables[name] for name in table.inputs if name in self.tables]
        return [t for t in inputs if t.kind.is_timed]

    def followed_inputs(self, table: Table) -> list[Table]:
        """The input tables whose commits its stream follows: those with event time, and of a keyed table those with keys, too."""
        if not table.kind.keeps_latest:
            return self.timed_inputs(table)
        inputs = [self.tables[name] for name in table.inputs if name in self.tables]
        return [t for t in inputs if not t.kind.is_reference]

    def driving(self, table: Table) -> Table:
        """The driving input of a table that has one: of any but ingest and reference tables."""
        driving = self.driving_input(table)
        assert driving is not None, f"table={table.name}: it follows no table"
        return driving

    @property
    def derived(self) -> list[Table]:
        return [t for t in self if t.kind.is_derived]

    def check_derived(self, table: Table) -> None:
        """Raises RangeError for a table without ranges to compute."""
        if not table.kind.is_derived:
            raise RangeError(f"table={table.name}: {table.kind.underived.format(table=table.name)}")

    def check_streamed(self, table: Table) -> None:
        """As `check_derived`, and raises RangeError for a report, which no stream fills."""
        self.check_derived(table)
        if not table.kind.is_streamed:
            raise RangeError(
                f"table={table.name}: a report has no stream, so none that begins after a batch run; Dagster computes what has "
                f"closed, or `lakehouse backfill {table.name}`"
            )

    def downstream(self, table: Table) -> tuple[str, ...]:
        """The tables that are computed from `table`, directly or through others, inputs first."""
        reached = {table.name}
        for each in self:  # in order: inputs come first
            if reached & set(each.inputs):
                reached.add(each.name)
        return tuple(t.name for t in self if t.name in reached - {table.name})

    def at_head(self, table: Table) -> bool:
        """Whether its streaming query follows what comes from outside its pipeline: a topic, or another pipeline's table."""
        followed = self.followed_inputs(table)
        return not followed or any(each.pipeline != table.pipeline for each in followed)

    def pinned_inputs(self, table: Table) -> list[Table]:
        """The inputs that its stream does not follow: each pinned to a version that the commit records."""
        refreshed = self.refreshed_inputs(table)
        return [
            t
            for t in (self.tables.get(name) for name in table.inputs)
            if t and t not in refreshed
            if t.kind.is_reference or (t.kind.keeps_latest and not table.kind.keeps_latest)
        ]

    def refreshed_inputs(self, table: Table) -> list[Table]:
        """The reference tables of which each row of a row table sees the version in force when it arrived."""
        if not table.kind.is_row_by_row:
            return []
        inputs = (self.tables.get(name) for name in table.inputs)
        return [t for t in inputs if t and t.refresh]

    def refreshed_behind(self, ingest: Table) -> dict[str, Table]:
        """The refreshed reference tables that rows of an ingest table meet, each with a table that reads it."""
        return {
            reference.name: reader
            for reader in self
            for reference in self.refreshed_inputs(reader)
            if ingest in self.ingest_tables_of(reader)
        }

    def versioned_inputs(self, table: Table) -> list[Table]:
        """The versioned tables that a table reads: its rows find in them what was valid at their event time."""
        inputs = (self.tables.get(name) for name in table.inputs)
        return [t for t in inputs if t and t.kind.keeps_versions]

    def ingest_tables_of(self, table: Table) -> list[Table]:
        """The ingest tables that a table is computed from, through the inputs that streams follow.

        Itself, if it is one. None for a reference table.
        """
        if self.sources_of(table):
            return [table]
        ingests = (each for t in self.followed_inputs(table) for each in self.ingest_tables_of(t))
        return list({each.name: each for each in ingests}.values())

    def is_of_changes(self, table: Table) -> bool:
        """Whether it is computed from the changes of a database's table."""
        return any(
            s.keys for t in self.ingest_tables_of(table) for s in self.sources_of(t).values()
        )

    @property
    def keyed(self) -> list[Table]:
        """The keyed and versioned tables: computed from all that their inputs have, without ranges."""
        return [t for t in self if t.kind.is_upserted]

    def event_time(self, table: Table) -> str:
        """The event-time column of the rows that a table is computed from; of an ingest table, of its own.

        A row table keeps its input's unless it names one.
        """
        if table.event_time:
            return table.event_time
        driving = self.driving_input(table)
        return self.time_column(driving) if driving else ""

    def time_column(self, table: Table) -> str:
        """The event-time column of a table's rows where another table reads them."""
        return WINDOW_TIME if table.window else self.event_time(table)

    def time_statistic(self, table: Table) -> str:
        """The column, of those whose least and greatest value a file's statistics have, that places rows in time."""
        return f"{WINDOW}.end" if table.window else self.event_time(table)

    def quiet_timeout(self, table: Table) -> timedelta:
        """How long the sources that a table is computed from must be silent for event time to go on; zero: it never does.

        Each of them must say so.
        """
        spans = [
            source.quiet_timeout
            for ingest in self.ingest_tables_of(table)
            for source in self.sources_of(ingest).values()
            if not source.is_history
        ]
        return max(spans) if spans and all(spans) else timedelta(0)

    def has_no_order(self, table: Table) -> bool:
        """Whether its rows are of no order in which they arrived: results of windows are not, nor rows of several inputs."""
        timed = self.timed_inputs(table)
        return len(timed) > 1 or any(each.window or self.has_no_order(each) for each in timed)

    def follows_frontiers(self, table: Table) -> bool:
        """Whether the frontiers of its inputs alone say how far they are, and not the watermarks that rows carry.

        Rows without an order carry none that holds for all. Rows that were joined came when they could be, and not when they
        arrived. A silent topic has no rows.
        """
        if self.has_no_order(table) or self.quiet_timeout(table):
            return True
        timed = self.timed_inputs(table)
        return any(t.context or t.as_of or t.ttl or self.follows_frontiers(t) for t in timed)

    def pipelines(self) -> list[str]:
        return list(dict.fromkeys(t.pipeline for t in self))

    def of_pipeline(self, pipeline: str) -> list[Table]:
        """The tables of one pipeline in order; raises UnknownTable."""
        tables = [t for t in self if t.pipeline == pipeline]
        if not tables:
            raise UnknownTable(
                f"pipeline={pipeline!r}: there is no such module of tables; name one of {', '.join(self.pipelines())}"
            )
        return tables

    def targets(self, pipelines: Iterable[str] | None = None) -> dict[str, Table]:
        """The table that is published to each target, by the target's name: of these pipelines, or of all."""
        chosen = self.pipelines() if pipelines is None else list(pipelines)
        return {
            target.name: table
            for table in self
            if table.pipeline in chosen
            for target in table.publish
        }

    def target(self, name: str) -> tuple[Table, Target]:
        """A target and the table that is published there; raises UnknownTable with the nearest names."""
        known = self.targets()
        if name not in known:
            near = get_close_matches(name, known) or sorted(known) or ["publish=[...] on a table"]
            raise UnknownTable(
                f"target={name!r}: no table is published there; did you mean {', '.join(near)}?"
            )
        table = known[name]
        return table, next(each for each in table.publish if each.name == name)

    def topics(self, tables: Iterable[Table] | None = None) -> list[str]:
        """The topics that these tables (or all) read."""
        return sorted(
            {
                s.address
                for t in (self if tables is None else tables)
                for s in self.topics_of(t).values()
            }
        )


def load(settings: Settings) -> Catalog:
    """The catalog of the modules in `settings.tables`.

    Raises DeclarationError naming module and rule.

    Pipelines that the settings have together in one process are one, by the name they have there.
    Raises SettingsError if the settings speak of a pipeline that none of them is.
    """
    catalog = _together(catalog_of(imported(settings)), settings)
    for name in ("freshness", "resources"):
        if unknown := sorted(set(getattr(settings, name)) - set(catalog.pipelines())):
            raise SettingsError(
                f"{name} of {unknown[0]}={getattr(settings, name)[unknown[0]]!r}: there is no such pipeline; name "
                f"one of {', '.join(catalog.pipelines())}"
            )
    return catalog


def _together(found: Catalog, settings: Settings) -> Catalog:
    """The same tables under the names that their pipelines have where they share a process."""
    names = {member: name for name in settings.together for member in settings.members(name)}
    for member, name in names.items():
        if member not in found.pipelines() or name in set(found.pipelines()) - set(names):
            wrong, why = (
                (member, "no such pipeline")
                if member not in found.pipelines()
                else (name, "another pipeline's name")
            )
            raise SettingsError(
                f"together of {name}={settings.together[name]!r}, {wrong!r}: {why}; there are {', '.join(found.pipelines())}"
            )
    renamed = {t.name: replace(t, pipeline=names.get(t.pipeline, t.pipeline)) for t in found}
    return replace(found, tables=renamed)


def catalog_of(modules: Sequence[ModuleType]) -> Catalog:
    """The catalog of these modules; each is a pipeline, named by `pipeline_of`."""
    sources: dict[str, Source] = {}
    tables: dict[str, Table] = {}
    for module in modules:
        for name, value in vars(module).items():
            if not isinstance(value, Source | Table) or name.startswith("_"):
                continue
            declared = sources.get(name) or tables.get(name)
            if declared is not None and not _same(declared, value):
                raise DeclarationError(
                    f"name={name!r}: declared twice, and one name is one table, folder and checkpoint; rename one"
                )
            if isinstance(value, Table):
                home = pipeline_of(value.transformation.__module__)
                if name == value.name:  # an import of another pipeline's table keeps its home
                    tables.setdefault(name, replace(value, pipeline=home))
            elif declared is None:
                sources[name] = replace(value, name=name)
    rules.check(modules, tables)
    catalog = Catalog(sources, _in_order(sources, tables))
    for each in [t for t in catalog if t.report]:
        timed = tuple(catalog.timed_inputs(each))
        catalog.tables[each.name] = replace(each, closes_with=timed)
    check_all(*(partial(rules.check_table, catalog, each) for each in catalog))
    for each in catalog:
        _ = each.code_version  # read now, while the file is what was imported
    return catalog


def _same(known: Source | Table, value: Source | Table) -> bool:
    if isinstance(known, Table):
        return isinstance(value, Table) and known.transformation is value.transformation
    return isinstance(value, type(known)) and replace(value, name=known.name) == known


def _in_order(sources: dict[str, Source], tables: dict[str, Table]) -> dict[str, Table]:
    for each in tables.values():
        for name in each.inputs:
            if name not in sources and name not in tables:
                near = get_close_matches(name, [*sources, *tables])
                raise DeclarationError(
                    f"table={each.name}, input={name!r}: no source or table has that name"
                    + (
                        f"; did you mean {near[0]}?"
                        if near
                        else "; parameters name a table's inputs"
                    )
                )
    try:
        order = TopologicalSorter(
            {n: [i for i in t.inputs if i in tables] for n, t in tables.items()}
        ).static_order()
        ordered: dict[str, Table] = {}
        for name in order:
            inputs = [ordered[each] for each in tables[name].inputs if each in ordered]
            as_of = any(each.kind.keeps_versions for each in inputs)
            ordered[name] = replace(tables[name], as_of=as_of)
        return ordered
    except CycleError as err:
        raise DeclarationError(
            f"tables={' -> '.join(err.args[1])}: a table cannot be computed from itself"
        ) from err
