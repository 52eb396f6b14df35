"""The graph of sources and tables: loaded from the modules that the settings name, checked, in order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from lakehouse.declare import modules, rules
from lakehouse.declare.sources import FileSource, KafkaSource, Source
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError, RangeError, SettingsError, UnknownTable
from lakehouse.settings import SOONEST_STALE, Settings

Kind = Literal["ingest", "row", "window", "reference", "keyed", "versioned"]


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
                f"table={name!r}: no module declares it; did you mean {', '.join(near)}?"
            )
        return self.tables[name]

    def kind(self, table: Table) -> Kind:
        """`ingest` (reads a topic), `window`, `row` (row-preserving), `keyed`, `versioned`, or `reference` (no event time)."""
        if self.topics_of(table):
            return "ingest"
        if table.keeps:
            return "keyed" if table.keeps == "latest" else "versioned"
        if table.window is not None:
            return "window"
        return "row" if self.driving_input(table) else "reference"

    def topics_of(self, table: Table) -> dict[str, KafkaSource]:
        """The topics that an ingest table reads, by input name; empty for every other table."""
        found = {name: self.sources.get(name) for name in table.inputs}
        return {name: source for name, source in found.items() if isinstance(source, KafkaSource)}

    def driving_input(self, table: Table) -> Table | None:
        """The one input table with event time, which the streaming query follows.

        None for ingest tables and reference tables.
        """
        inputs = [self.tables[name] for name in table.inputs if name in self.tables]
        return next((t for t in inputs if self.kind(t) in ("ingest", "row", "window")), None)

    def driving(self, table: Table) -> Table:
        """The driving input of a table that has one: of any but ingest and reference tables."""
        found = self.driving_input(table)
        assert found is not None, f"table={table.name}: it follows no table"
        return found

    def is_derived(self, table: Table) -> bool:
        """Whether it has ranges of event time that batch runs may compute: windows or rows, no ingest or reference table."""
        return self.kind(table) in ("row", "window")

    def has_quarantine(self, table: Table) -> bool:
        """Whether it has partitions, and a quarantine beside it.

        Reference, keyed and versioned tables have neither.
        """
        return self.kind(table) in ("ingest", "row", "window")

    @property
    def derived(self) -> list[Table]:
        return [t for t in self if self.is_derived(t)]

    def check_derived(self, table: Table) -> None:
        """Raises RangeError for a table without ranges to compute."""
        kind = self.kind(table)
        if kind == "ingest":
            raise RangeError(
                f"table={table.name}: only the stream writes an ingest table, and nothing can compute it again; name a table "
                "that reads it"
            )
        if kind == "reference":
            raise RangeError(
                f"table={table.name}: it has no event time, so no ranges; it is rebuilt whole"
            )
        if kind in ("keyed", "versioned"):
            raise RangeError(
                f"table={table.name}: a {kind} table has no ranges; `lakehouse backfill {table.name}` has its job "
                "compute it again"
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
        driving = self.driving_input(table)
        return driving is None or driving.pipeline != table.pipeline

    def pinned_inputs(self, table: Table) -> list[Table]:
        """The inputs without event time: each pinned to a version that the commit records."""
        return [
            t
            for t in (self.tables.get(name) for name in table.inputs)
            if t and self.kind(t) in ("reference", "keyed")
        ]

    def versioned_inputs(self, table: Table) -> list[Table]:
        """The versioned tables that a table reads: its rows find in them what was valid at their event time."""
        return [
            t
            for t in (self.tables.get(name) for name in table.inputs)
            if t and t.keeps == "versions"
        ]

    def ingest_table_of(self, table: Table) -> Table | None:
        """The ingest table that a table is computed from, through its driving inputs.

        Itself, if it is one. None for a reference table.
        """
        driving = self.driving_input(table)
        return table if self.topics_of(table) else driving and self.ingest_table_of(driving)

    @property
    def keyed(self) -> list[Table]:
        """The keyed and versioned tables: of the whole ingest table, without ranges."""
        return [t for t in self if t.keeps]

    def event_time(self, table: Table) -> str:
        """The event-time column of an ingest table or row table.

        A row table has its input's unless it names one.
        """
        if table.event_time:
            return table.event_time
        driving = self.driving_input(table)
        return self.event_time(driving) if driving else ""

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

    def topics(self, tables: Iterable[Table] | None = None) -> list[str]:
        """The topics that these tables (or all) read."""
        return sorted(
            {
                s.topic
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
    found = _together(catalog_of(modules.imported(settings)), settings)
    for name in ("freshness", "resources"):
        if unknown := sorted(set(getattr(settings, name)) - set(found.pipelines())):
            raise SettingsError(
                f"{name} of {unknown[0]}={getattr(settings, name)[unknown[0]]!r}: there is no such pipeline; name "
                f"one of {', '.join(found.pipelines())}"
            )
    return found


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
    """The catalog of these modules; a pipeline is a module, named by the last part of its name."""
    sources: dict[str, Source] = {}
    tables: dict[str, Table] = {}
    for module in modules:
        for name, value in vars(module).items():
            if not isinstance(value, Source | Table) or name.startswith("_"):
                continue
            known = sources.get(name) or tables.get(name)
            if known is not None and not _same(known, value):
                raise DeclarationError(
                    f"name={name!r}: declared twice, and one name is one table, folder and checkpoint; rename one"
                )
            if isinstance(value, Table):
                home = value.transformation.__module__.rpartition(".")[2]
                if name == value.name:  # an import of another pipeline's table keeps its home
                    tables.setdefault(name, replace(value, pipeline=home))
            elif known is None:
                sources[name] = replace(value, name=name)
    rules.check(modules, tables)
    catalog = Catalog(sources, _in_order(sources, tables))
    for each in catalog:
        _check(catalog, each)
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
        kept = {name for name, t in tables.items() if t.keeps == "versions"}
        return {
            name: replace(tables[name], as_of=not kept.isdisjoint(tables[name].inputs))
            for name in order
        }
    except CycleError as err:
        raise DeclarationError(
            f"tables={' -> '.join(err.args[1])}: a table cannot be computed from itself"
        ) from err


def _check(catalog: Catalog, table: Table) -> None:
    kind, where = catalog.kind(table), f"table={table.name}"
    driving = [
        n
        for n in table.inputs
        if n in catalog.tables and catalog.kind(catalog.tables[n]) in ("ingest", "row", "window")
    ]
    if table.keeps:
        _check_keyed(catalog, table, driving)
    if table.as_of:
        _check_as_of(catalog, table, where)
    _check_ingest(catalog, table, where)
    _check_driving(catalog, table, driving, where)
    _check_row_by_row(table, kind, where)
    if not table.keeps:  # which keep every row, and are judged as a whole
        rules.check_single_rows(table)
    if table.stale_after and (
        not catalog.has_quarantine(table) or table.stale_after < SOONEST_STALE
    ):
        raise DeclarationError(
            f"{where}, stale_after={table.stale_after}: at least {SOONEST_STALE}, and not for a {kind} table, which may stay as "
            "it is; raise it or remove it"
        )
    if kind == "reference" and (table.event_time or table.delay):
        raise DeclarationError(
            f"{where}: it has no input with event time, so event_time and delay mean nothing; remove them"
        )


def _check_ingest(catalog: Catalog, table: Table, where: str) -> None:
    kind, topics = catalog.kind(table), catalog.topics_of(table)
    if topics and len(topics) < len(table.inputs):
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: an ingest table reads topics only; join other inputs in a table that reads it"
        )
    if len({source.topic for source in topics.values()}) < len(topics):
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: two of them are one topic, so each row would be there twice; name it once"
        )
    if kind == "ingest" and not table.event_time:
        raise DeclarationError(
            f"{where}: an ingest table needs an event time, by which rows are late; add event_time=<column>"
        )
    if kind == "ingest" and table.window is not None:
        raise DeclarationError(
            f"{where}: an ingest table keeps every row; put the window into a table that reads it"
        )


def _check_driving(catalog: Catalog, table: Table, driving: Sequence[str], where: str) -> None:
    read_files = [n for n in table.inputs if isinstance(catalog.sources.get(n), FileSource)]
    if len(driving) > 1:
        raise DeclarationError(
            f"{where}, inputs={driving}: a table has one input with event time; unite topics in an ingest table that takes "
            "several, and join its rows with each other within context=around(...) or a window"
        )
    if driving and catalog.kind(catalog.tables[driving[0]]) == "window":
        raise DeclarationError(
            f"{where}, input={driving[0]}: windows of a window table are not supported yet; read the input of that table"
        )
    if read_files and driving:
        raise DeclarationError(
            f"{where}, input={read_files[0]}: files are read by a reference table, so that they have versions; declare one and read that"
        )
    if table.window is not None and not driving:
        raise DeclarationError(
            f"{where}: a window needs an input with event time, and {table.inputs} has none; read a table that has one"
        )


def _check_row_by_row(table: Table, kind: str, where: str) -> None:
    if table.deduplicate and kind != "row":
        raise DeclarationError(
            f"{where}, deduplicate={table.deduplicate}: duplicates are taken out of single rows; declare it on a row table "
            "and read that"
        )
    if table.deduplicate and table.late == "update":
        raise DeclarationError(
            f"{where}, deduplicate, late='update': a late row merged afterwards could be the first of rows that are already "
            "in the table; use late='side_output' or 'drop'"
        )
    if table.context and (kind != "row" or table.deduplicate):
        raise DeclarationError(
            f"{where}, context={table.context}: it is for row tables without deduplicate=; join within a window by the column "
            "window, and deduplicate in a table that this one reads"
        )
    if table.early_results and table.window is None:
        raise DeclarationError(
            f"{where}, early_results={table.early_results}: rows without a window are final at once; remove it"
        )


def _check_keyed(catalog: Catalog, table: Table, driving: Sequence[str]) -> None:
    where = f"table={table.name}, keeps={table.keeps!r}"
    if not table.keys:
        raise DeclarationError(
            f"{where}: such a table needs a key; name the columns that identify a row: keys=[...]"
        )
    if len(driving) != 1 or catalog.kind(catalog.tables[driving[0]]) != "ingest":
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: it is computed from every row of one ingest table, late ones too; read that, and "
            "leave out in the function what does not count"
        )
    unused = {
        name: getattr(table, name)
        for name in ("window", "context", "deduplicate", "early_results", "delay", "metrics")
    }
    if given := [name for name, value in unused.items() if value]:
        raise DeclarationError(
            f"{where}, {given[0]}={unused[given[0]]}: it has no ranges of event time; remove it"
        )
    if table.late != "side_output":
        raise DeclarationError(f"{where}, late={table.late!r}: no row is late for it; remove it")


def _check_as_of(catalog: Catalog, table: Table, where: str) -> None:
    if catalog.kind(table) != "row" or table.context or table.deduplicate:
        raise DeclarationError(
            f"{where}, inputs={table.inputs}: a versioned table is read row by row, as of each row's event time; do that in a "
            "row table without context= and deduplicate=, and read that"
        )
    for versioned in catalog.versioned_inputs(table):
        if catalog.ingest_table_of(versioned) != catalog.ingest_table_of(table):
            raise DeclarationError(
                f"{where}, input={versioned.name}: it is computed from another ingest table, so it is not known how far it is "
                "complete when a row is joined; unite their topics in one ingest table"
            )


def table_path(
    settings: Settings, table: Table, side: Literal["", "quarantine", "early"] = ""
) -> Path:
    """The folder of a table (or of its side table): `<root>/<layer>/<table>`."""
    return settings.root / table.layer / (f"{table.name}__{side}" if side else table.name)
