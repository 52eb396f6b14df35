"""Is what a run wrote exactly what was sent? Compared with the oracle, behind the frontier of each run."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deltalake import DeltaTable

from benchmarks import plain
from benchmarks.measure import BenchmarkError
from benchmarks.topic import Views
from lakehouse.declare import catalog
from lakehouse.examples.ads.producer import WINDOW_MS
from lakehouse.settings import Settings
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log import commit_log


@dataclass(frozen=True, slots=True)
class Written:
    """What a run left behind: its two tables, and up to which instant the second is complete."""

    bronze: Path
    gold: Path
    frontier_ms: int


def bronze(settings: Settings) -> Path:
    return table_path(settings, catalog.load(settings).table("ad_events"))


def ours(settings: Settings) -> Written:
    views = catalog.load(settings).table("campaign_views")
    ahead = commit_log.frontier(settings, views)
    return Written(bronze(settings), table_path(settings, views), _ms(ahead))


def by_hand(settings: Settings) -> Written:
    watermark = datetime.fromisoformat((settings.root / plain.WATERMARK).read_text())
    return Written(plain.bronze(settings.root), plain.gold(settings.root), _ms(watermark))


def check(name: str, written: Written, sent: int, expected: Views, complete_ms: int) -> None:
    """Every row in bronze, every window up to the frontier exact, the frontier at least at `complete_ms`.

    Raises BenchmarkError.
    """
    check_rows(name, written, sent)
    if written.frontier_ms < complete_ms:
        behind = (complete_ms - written.frontier_ms) / 1000
        raise BenchmarkError(
            f"{name}: its frontier ends {behind:.1f} s before what it had to do; the run is void"
        )
    compare(name, read_views(written.gold), upto(expected, written.frontier_ms))


def check_rows(name: str, written: Written, sent: int) -> None:
    """Every row in bronze. Raises BenchmarkError."""
    kept = rows(written.bronze)
    if kept != sent:
        raise BenchmarkError(
            f"{name}: {kept:,} rows in {written.bronze.name}, sent were {sent:,}; the run is void"
        )


def rows(table: Path) -> int:
    return DeltaTable(str(table)).to_pyarrow_dataset().count_rows()


def upto(expected: Views, instant_ms: int) -> Views:
    """The windows that end at or before the instant."""
    return {key: n for key, n in expected.items() if key[1] + WINDOW_MS <= instant_ms}


def compare(name: str, found: Views, wanted: Views) -> None:
    """Raises BenchmarkError unless `found` is exactly `wanted`."""
    if not wanted:
        raise BenchmarkError(f"{name}: no closed window to compare; the run is void")
    if found != wanted:
        wrong = sorted(k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k))
        shown = ", ".join(f"{k}: {found.get(k)} for {wanted.get(k)}" for k in wrong[:5])
        raise BenchmarkError(
            f"{name}: {len(wrong)} of {len(wanted)} counts are wrong ({shown}); the run is void"
        )


def read_views(gold: Path) -> Views:
    """The gold table as the oracle has it. Raises BenchmarkError if a window is there twice."""
    table = DeltaTable(str(gold)).to_pyarrow_table(columns=["window", "campaign_id", "views"])
    starts = [_ms(w["start"]) for w in table["window"].to_pylist()]
    keys = list(zip(table["campaign_id"].to_pylist(), starts, strict=True))
    if twice := len(keys) - len(set(keys)):
        raise BenchmarkError(f"{gold.name}: {twice} windows are there twice; the run is void")
    return dict(zip(keys, table["views"].to_pylist(), strict=True))


def _ms(instant: datetime | None) -> int:
    return int(instant.astimezone(UTC).timestamp() * 1000) if instant else 0
