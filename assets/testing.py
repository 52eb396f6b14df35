"""The kit for tests of assets, beside `lakehouse.testing`: run them in this process, on the session that is there.

def test_views(stage):  # a lakehouse.testing.Stage with closed partitions
    result = materialize(stage.session.settings, "campaign_views", "2026-01-01-00", "2026-01-01-01")
    assert result.success
    assert evaluate(stage.session.settings, "campaign_views", "stream_equals_batch").passed
"""

from typing import Any

import dagster as dg

from assets import definitions
from lakehouse.settings import Settings


def materialize(
    settings: Settings,
    table: str,
    first: str = "",
    last: str = "",
    *,
    instance: dg.DagsterInstance | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialises a table, or the partitions `first` to `last`, in one run, as the UI would. A failure is returned."""
    selection = dg.AssetSelection.assets(table).without_checks()
    return _run(settings, selection, first, last or first, instance)


def evaluate(
    settings: Settings, table: str, check: str, *, instance: dg.DagsterInstance | None = None
) -> dg.AssetCheckEvaluation | None:
    """Returns the outcome of one check of a table; None if the check could not look at the data."""
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey(table), check))
    result = _run(settings, selection, "", "", instance)
    return next(iter(result.get_asset_check_evaluations()), None)


def _run(
    settings: Settings,
    selection: dg.AssetSelection,
    first: str,
    last: str,
    instance: dg.DagsterInstance | None,
) -> dg.ExecuteInProcessResult:
    built = definitions.build(settings)
    chosen = (
        {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        if first
        else {}
    )
    # its type also allows assets that are computed when they are loaded; there are none here
    made: list[Any] = [*(built.assets or ()), *(built.asset_checks or ())]
    return dg.materialize(
        made,
        selection=selection,
        tags=chosen,
        resources=built.resources,
        instance=instance,
        raise_on_error=False,
    )
