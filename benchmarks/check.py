"""Is what a run wrote exactly what was sent? Compared with the oracle, behind the frontier of each run."""

from datetime import UTC, datetime
from pathlib import Path

from deltalake import DeltaTable
from lakehouse import catalog, frontier
from lakehouse.catalog import table_path
from lakehouse.settings import Settings

from benchmarks import plain
from benchmarks.measure import BenchmarkError
from benchmarks.topic import Views
from lakehouse.producers.ads import WINDOW_MS

_LEAST_SHARE = 0.9  # of the windows must be closed, else the run did not do the work


def ours(settings: Settings) -> tuple[Path, Path, int]:
    """Bronze, gold and frontier (ms) of our tables."""
    known = catalog.load(settings)
    views = known.table("campaign_views")
    ahead = frontier.frontier(settings, views)
    return table_path(settings, known.table("ad_events")), table_path(settings, views), _ms(ahead)


def by_hand(settings: Settings) -> tuple[Path, Path, int]:
    """Bronze, gold and watermark (ms) of a plain script."""
    text = (settings.root / plain.WATERMARK).read_text()
    return plain.bronze(settings.root), plain.gold(settings.root), _ms(datetime.fromisoformat(text))


def check(name: str, tables: tuple[Path, Path, int], sent: int, expected: Views) -> int:
    """How many rows of closed windows were compared. Raises BenchmarkError at the first difference."""
    bronze, gold, frontier_ms = tables
    kept = DeltaTable(str(bronze)).to_pyarrow_dataset().count_rows()
    if kept != sent:
        raise BenchmarkError(f"{name}: {kept:,} rows in {bronze.name}, sent were {sent:,}; the run is void")
    return compare(name, read_views(gold), {k: n for k, n in expected.items() if k[1] + WINDOW_MS <= frontier_ms}, len(expected))


def compare(name: str, found: Views, wanted: Views, of: int) -> int:
    """`found` must be `wanted`, and that a good part `of` everything. Raises BenchmarkError."""
    if found != wanted:
        wrong = [k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k)]
        shown = ", ".join(f"{k}: {found.get(k)} for {wanted.get(k)}" for k in sorted(wrong)[:5])
        raise BenchmarkError(f"{name}: {len(wrong)} of {len(wanted)} counts are wrong ({shown}); the run is void")
    if len(wanted) < _LEAST_SHARE * of:
        raise BenchmarkError(f"{name}: only {len(wanted)} of {of} counts are closed; the run is void")
    return len(wanted)


def read_views(gold: Path) -> Views:
    table = DeltaTable(str(gold)).to_pyarrow_table(columns=["window", "campaign_id", "views"])
    starts = [int(w["start"].timestamp() * 1000) for w in table["window"].to_pylist()]
    keys = list(zip(table["campaign_id"].to_pylist(), starts, strict=True))
    if len(set(keys)) != len(keys):
        raise BenchmarkError(f"{gold.name}: {len(keys) - len(set(keys))} windows are there twice; the run is void")
    return dict(zip(keys, table["views"].to_pylist(), strict=True))


def _ms(instant: datetime | None) -> int:
    return int(instant.astimezone(UTC).timestamp() * 1000) if instant else 0
