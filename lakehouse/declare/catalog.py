"""The graph of sources and tables: loaded from the modules that the settings name, checked, in order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from graphlib import CycleError, TopologicalSorter
from types import ModuleType

from lakehouse.declare import rules
from lakehouse.declare.columns import WINDOW, WINDOW_TIME
from lakehouse.declare.inputs.files import FileSource
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.sources import RecordSource, Source
from lakehouse.declare.modules import imported, pipeline_of
from lakehouse.declare.remarks import check_all, refuse
from lakehouse.declare.table import Table
from lakehouse.declare.targets import Target
from lakehouse.errors import DeclarationError, RangeError, SettingsError, UnknownTable
from lakehouse.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """Every source and table by name; a table comes after its inputs. It equals itself alone, as what is made of it."""

    sources: dict[str, Source]
    tables: dict[str, Table]

    def __iter__(self) -> Iterator[Table]:
        return iter(self.tables.values())

    def table(self, name: str) -> Table:
        """Returns the table of that name; raises UnknownTable with the nearest names."""
        if name not in self.tables:
            near = get_close_matches(name, self.tables) or sorted(self.tables)
            raise UnknownTable(
                f"table={name!r}: no module declares it (LAKEHOUSE_TABLES); did you mean {', '.join(near)}?"
            )
        return self.tables[name]

    def sources_of(self, table: Table) -> dict[str, RecordSource]:
        """Returns the sources of an ingest table by input name, a topic's history beside it; empty for any other table."""
        declared = {name: self.sources[name] for name in table.inputs if name in self.sources}
        return dict(read for name, source in declared.items() for read in source.read_by(name))

    def topics_of(self, table: Table) -> dict[str, KafkaSource]:
        """Returns the topics of an ingest table by input name; empty for any other table."""
        reads = self.sources_of(table)
        return {name: source for name, source in reads.items() if isinstance(source, KafkaSource)}

    def files_of(self, table: Table) -> dict[str, FileSource]:
        """Returns the files that a table reads whole, by input name: a reference table alone may."""
        named = {name: self.sources.get(name) for name in table.inputs}
        return {name: source for name, source in named.items() if isinstance(source, FileSource)}

    def input_tables(self, table: Table) -> list[Table]:
        """Returns the inputs that are tables, in their order."""
        return [self.tables[name] for name in table.inputs if name in self.tables]

    def driving_input(self, table: Table) -> Table | None:
        """Returns the first input table with event time, which places rows; None for ingest and reference tables."""
        return next(iter(self.timed_inputs(table)), None)

    def timed_inputs(self, table: Table) -> list[Table]:
        """Returns the input tables with event time. The stream goes as far as all of them have come."""
        return [t for t in self.input_tables(table) if t.kind.is_timed]

    def followed_inputs(self, table: Table) -> list[Table]:
        """Returns the input tables whose commits the stream follows: those with event time; of a keyed table also keyed ones."""
        if not table.kind.keeps_latest:
            return self.timed_inputs(table)
        return [t for t in self.input_tables(table) if not t.kind.is_reference]

    def driving(self, table: Table) -> Table:
        """Returns the driving input of a table that is neither an ingest nor a reference table."""
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
        """Raises RangeError for a table without ranges to compute, and for a report, which no stream fills."""
        self.check_derived(table)
        if not table.kind.is_streamed:
            raise RangeError(
                f"table={table.name}: a report has no stream; Dagster computes it, or `lakehouse backfill {table.name}`"
            )

    def downstream(self, table: Table) -> tuple[str, ...]:
        """Returns the tables computed from `table`, directly or through others, inputs first."""
        reached = {table.name}
        for candidate in self:  # in order: inputs come first
            if reached & set(candidate.inputs):
                reached.add(candidate.name)
        return tuple(t.name for t in self if t.name in reached - {table.name})

    def at_head(self, table: Table) -> bool:
        """Returns True if the stream follows an input outside its pipeline: a topic, or another pipeline's table."""
        followed = self.followed_inputs(table)
        return not followed or any(t.pipeline != table.pipeline for t in followed)

    def pinned_inputs(self, table: Table) -> list[Table]:
        """Returns the inputs that the stream does not follow. Each is pinned to a version that the commit records."""
        refreshed = self.refreshed_inputs(table)
        others = [t for t in self.input_tables(table) if t not in refreshed]
        keyed_too = not table.kind.keeps_latest
        return [t for t in others if t.kind.is_reference or (t.kind.keeps_latest and keyed_too)]

    def refreshed_inputs(self, table: Table) -> list[Table]:
        """Returns a row table's refreshed reference tables: a row sees the version in force when it arrived."""
        if not table.kind.is_row_by_row:
            return []
        return [t for t in self.input_tables(table) if t.refresh]

    def refreshed_behind(self, ingest: Table) -> dict[str, Table]:
        """Returns the refreshed reference tables downstream of an ingest table, each with a table that reads it."""
        return {
            reference.name: reader
            for reader in self
            for reference in self.refreshed_inputs(reader)
            if ingest in self.ingest_tables_of(reader)
        }

    def versioned_inputs(self, table: Table) -> list[Table]:
        """Returns the versioned inputs, in which a row finds what was valid at its event time."""
        return [t for t in self.input_tables(table) if t.kind.keeps_versions]

    def ingest_tables_of(self, table: Table) -> list[Table]:
        """Returns the ingest tables that a table is computed from, through the inputs that streams follow.

        An ingest table is its own. A reference table has none.
        """
        if self.sources_of(table):
            return [table]
        ingests = [i for t in self.followed_inputs(table) for i in self.ingest_tables_of(t)]
        return list({ingest.name: ingest for ingest in ingests}.values())

    def origins_of(self, table: Table) -> list[RecordSource]:
        """Returns the sources of all ingest tables that a table is computed from."""
        ingests = self.ingest_tables_of(table)
        return [source for ingest in ingests for source in self.sources_of(ingest).values()]

    @property
    def keyed(self) -> list[Table]:
        """Keyed and versioned tables, which are computed from all rows of their inputs, without ranges."""
        return [t for t in self if t.kind.is_upserted]

    def event_time(self, table: Table) -> str:
        """Returns the event-time column that the table names, or else that of its driving input."""
        if table.event_time:
            return table.event_time
        driving = self.driving_input(table)
        return self.time_column(driving) if driving else ""

    def time_column(self, table: Table) -> str:
        """Returns the event-time column of the table's rows as another table reads them."""
        return WINDOW_TIME if table.window else self.event_time(table)

    def time_statistic(self, table: Table) -> str:
        """Returns the column whose least and greatest values in a file's statistics place its rows in time."""
        return f"{WINDOW}.end" if table.window else self.event_time(table)

    def quiet_timeout(self, table: Table) -> timedelta:
        """Returns how long all sources must be silent before event time goes on by the clock.

        Zero, which is never, unless each source declares a `quiet_timeout`.
        """
        spans = [s.quiet_timeout for s in self.origins_of(table) if not s.is_history]
        return max(spans) if spans and all(spans) else timedelta(0)

    def has_no_order(self, table: Table) -> bool:
        """Returns True if no order of arrival is defined: for results of windows, and for rows of several inputs."""
        timed = self.timed_inputs(table)
        return len(timed) > 1 or any(t.window or self.has_no_order(t) for t in timed)

    def follows_frontiers(self, table: Table) -> bool:
        """Returns True if the inputs' frontiers alone show their progress, not the watermarks that rows carry.

        Rows without an order carry no watermark that holds for all. Joined rows come when both sides are there, not when
        they arrived. A silent topic has no rows.
        """
        if self.has_no_order(table) or self.quiet_timeout(table):
            return True
        timed = self.timed_inputs(table)
        return any(t.context or t.as_of or t.ttl or self.follows_frontiers(t) for t in timed)

    def pipelines(self) -> list[str]:
        return list(dict.fromkeys(t.pipeline for t in self))

    def of_pipeline(self, pipeline: str) -> list[Table]:
        """Returns the tables of one pipeline in order; raises UnknownTable."""
        tables = [t for t in self if t.pipeline == pipeline]
        if not tables:
            raise UnknownTable(
                f"pipeline={pipeline!r}: no such module of tables; name one of {', '.join(self.pipelines())}"
            )
        return tables

    def targets(self, pipelines: Iterable[str] | None = None) -> dict[str, Table]:
        """Returns the published table by the name of its target: of these pipelines, or of all."""
        chosen = self.pipelines() if pipelines is None else list(pipelines)
        tables = (table for table in self if table.pipeline in chosen)
        return {target.name: table for table in tables for target in table.publish}

    def target(self, name: str) -> tuple[Table, Target]:
        """Returns a table and the target where it is published; raises UnknownTable with the nearest names."""
        published = self.targets()
        if name not in published:
            names = sorted(published) or ["publish=[...] on a table"]
            near = get_close_matches(name, published) or names
            raise UnknownTable(
                f"target={name!r}: no table is published there; did you mean {', '.join(near)}?"
            )
        table = published[name]
        return table, next(target for target in table.publish if target.name == name)

    def topics(self, tables: Iterable[Table] | None = None) -> list[str]:
        """Returns the topics that these tables (or all) read."""
        chosen = self if tables is None else tables
        return sorted({s.address for t in chosen for s in self.topics_of(t).values()})


def load(settings: Settings) -> Catalog:
    """Returns the catalog of the modules in `settings.tables`.

    Pipelines that share a process by the settings count as one, under the name they have there.
    Raises DeclarationError with module and rule, and SettingsError if the settings name an unknown pipeline.
    """
    catalog = _together(catalog_of(imported(settings)), settings)
    for name in ("freshness", "resources"):
        if unknown := sorted(set(getattr(settings, name)) - set(catalog.pipelines())):
            raise SettingsError(
                f"{name} of {unknown[0]}={getattr(settings, name)[unknown[0]]!r}: there is no such pipeline; name "
                f"one of {', '.join(catalog.pipelines())}"
            )
    return catalog


def _together(catalog: Catalog, settings: Settings) -> Catalog:
    """Returns the same tables under the names of the processes that their pipelines share."""
    names = {member: name for name in settings.together for member in settings.members(name)}
    for member, name in names.items():
        is_there = member in catalog.pipelines()
        if not is_there or name in set(catalog.pipelines()) - set(names):
            wrong = name if is_there else member
            why = "another pipeline's name" if is_there else "no such pipeline"
            raise SettingsError(
                f"together of {name}={settings.together[name]!r}, {wrong!r}: {why}; there are {', '.join(catalog.pipelines())}"
            )
    renamed = {t.name: replace(t, pipeline=names.get(t.pipeline, t.pipeline)) for t in catalog}
    return replace(catalog, tables=renamed)


def catalog_of(modules: Sequence[ModuleType]) -> Catalog:
    """Returns the catalog of these modules; each is a pipeline, named by `pipeline_of`."""
    sources: dict[str, Source] = {}
    tables: dict[str, Table] = {}
    for module in modules:
        for name, value in vars(module).items():
            if not isinstance(value, Source | Table) or name.startswith("_"):
                continue
            declared = sources.get(name) or tables.get(name)
            if declared is not None and not _same(declared, value):
                raise DeclarationError(
                    f"name={name!r}: it is declared twice, and a name is one table, folder and checkpoint; rename one"
                )
            if isinstance(value, Table):
                home = pipeline_of(value.transformation.__module__)
                if name == value.name:  # an import of another pipeline's table keeps its home
                    tables.setdefault(name, replace(value, pipeline=home))
            elif declared is None:
                sources[name] = replace(value, name=name)
    rules.check(modules, tables)
    catalog = Catalog(sources, _in_order(sources, tables))
    for table in [t for t in catalog if t.report]:
        timed = tuple(catalog.timed_inputs(table))
        catalog.tables[table.name] = replace(table, closes_with=timed)
    check_all(*(partial(rules.check_table, catalog, table) for table in catalog))
    for table in catalog:
        _ = table.code_version  # read now, while the file is what was imported
    return catalog


def _same(declared: Source | Table, value: Source | Table) -> bool:
    if isinstance(declared, Table):
        return isinstance(value, Table) and declared.transformation is value.transformation
    return isinstance(value, type(declared)) and replace(value, name=declared.name) == declared


def _in_order(sources: dict[str, Source], tables: dict[str, Table]) -> dict[str, Table]:
    remarks = []
    for table in tables.values():
        for name in [n for n in table.inputs if n not in sources and n not in tables]:
            near = get_close_matches(name, [*sources, *tables])
            hint = f"did you mean {near[0]}?" if near else "parameters name a table's inputs"
            remarks.append(
                f"table={table.name}, input={name!r}: no source or table has that name; {hint}"
            )
    refuse(remarks)
    graph = {n: [i for i in t.inputs if i in tables] for n, t in tables.items()}
    ordered: dict[str, Table] = {}
    try:
        for name in TopologicalSorter(graph).static_order():
            as_of = any(ordered[i].kind.keeps_versions for i in graph[name])
            ordered[name] = replace(tables[name], as_of=as_of)
        return ordered
    except CycleError as err:
        raise DeclarationError(
            f"tables={' -> '.join(err.args[1])}: a table cannot be computed from itself"
        ) from err
