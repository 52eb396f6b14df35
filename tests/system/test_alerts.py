"""The alert rules as Prometheus judges them: each fires on what it is for, and none while all is well."""

import shutil
import subprocess

import pytest
import yaml

from support import ROOT

RULES = ROOT / "ops" / "prometheus" / "alerts.yml"
ADS, TABLE = 'pipeline="ads"', 'pipeline="ads",table="ad_events"'
# a job that runs and commits, with nothing that waits, every minute for two hours
WELL = {
    f"lakehouse_job_up{{{ADS}}}": "1x120",
    f'lakehouse_job_state{{{ADS},lakehouse_job_state="running"}}': "1x120",
    f"lakehouse_job_heartbeat_age_seconds{{{ADS}}}": "1x120",
    f"lakehouse_job_start_time_seconds{{{ADS}}}": "0x120",
    f"lakehouse_job_interval_seconds{{{ADS}}}": "0x120",
    f"lakehouse_table_rows_total{{{TABLE}}}": "0+6000x120",
    f"lakehouse_table_quarantined_rows_total{{{TABLE}}}": "0+60x120",
    f"lakehouse_table_dropped_by_spark_total{{{TABLE}}}": "0x120",
    f"lakehouse_table_frontier_timestamp_seconds{{{TABLE}}}": "0+60x120",
    f"lakehouse_table_commit_timestamp_seconds{{{TABLE}}}": "0+60x120",
    f'lakehouse_table_lag_records{{{TABLE},topic="ad-events",partition="0"}}': "500 400 600 500x117",
    'lakehouse_reference_refresh_failed{pipeline="ads",table="campaigns"}': "0x120",
    f"lakehouse_certificate_ranges_different{{{TABLE}}}": "0x120",
    f"lakehouse_certificate_reconciled_until_timestamp_seconds{{{TABLE}}}": "0+60x120",
    'lakehouse_scrape_errors_total{part="jobs"}': "0x120",
}
# what is otherwise when something is wrong; None: it is not there
WRONG = {
    "LakehouseMetricsMissing": {name: None for name in WELL if name.startswith("lakehouse_job")},
    "LakehouseJobDead": {f'lakehouse_job_state{{{ADS},lakehouse_job_state="dead"}}': "0x30 1x90"},
    "LakehouseJobDegraded": {
        f'lakehouse_job_state{{{ADS},lakehouse_job_state="degraded"}}': "0x30 1x90"
    },
    "LakehouseHeartbeatOld": {f"lakehouse_job_heartbeat_age_seconds{{{ADS}}}": "1x30 10+60x90"},
    "LakehouseJobRestartsOften": {
        f"lakehouse_job_start_time_seconds{{{ADS}}}": "0x100 6000+300x20"
    },
    "LakehouseRunOverdue": {
        f"lakehouse_job_up{{{ADS}}}": "0x120",
        f"lakehouse_job_next_run_timestamp_seconds{{{ADS}}}": "3600x120",
    },
    "LakehouseMetricsIncomplete": {'lakehouse_scrape_errors_total{part="jobs"}': "0x110 1+1x10"},
    "LakehouseFrontierStandsStill": {
        f"lakehouse_table_frontier_timestamp_seconds{{{TABLE}}}": "0+60x60 3600x60"
    },
    "LakehouseReferenceOld": {
        'lakehouse_reference_refresh_failed{pipeline="ads",table="campaigns"}': "0x60 1x60"
    },
    "LakehouseSourceUnanswered": {
        f"lakehouse_table_source_unanswered_seconds{{{TABLE}}}": "_x60 61+60x60"
    },
    "LakehouseNoCommits": {
        f"lakehouse_table_commit_timestamp_seconds{{{TABLE}}}": "0+60x60 3600x60"
    },
    "LakehouseLagGrows": {
        f'lakehouse_table_lag_records{{{TABLE},topic="ad-events",partition="0"}}': "0x60 0+30000x60"
    },
    "LakehouseQuarantineShare": {
        f"lakehouse_table_quarantined_rows_total{{{TABLE}}}": "0x60 0+600x60"
    },
    "LakehouseDroppedBySpark": {f"lakehouse_table_dropped_by_spark_total{{{TABLE}}}": "0x60 3x60"},
    "LakehouseDifferent": {f"lakehouse_certificate_ranges_different{{{TABLE}}}": "0x60 1x60"},
    "LakehouseReconciliationOld": {
        f"lakehouse_certificate_reconciled_until_timestamp_seconds{{{TABLE}}}": "-20000+60x120"
    },
}


@pytest.mark.slow
@pytest.mark.parallel
def test_each_alert_fires_on_what_it_is_for_and_none_while_all_is_well(tmp_path):
    promtool = shutil.which("promtool")
    assert promtool, (
        "no promtool on the PATH: the alert rules are judged by it (Debian and Ubuntu: apt install prometheus)"
    )
    rules = [
        rule["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    ]
    assert sorted(rules) == sorted(WRONG)
    cases = [_case("", {}), *(_case(alert, changed) for alert, changed in WRONG.items())]
    file = tmp_path / "cases.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases})
    )
    judged = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, timeout=60
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr


def _case(alert: str, changed: dict[str, str | None]) -> dict:
    """Two hours, at whose end this alert fires (`""`: none) and no other."""
    series = {name: values for name, values in (WELL | changed).items() if values is not None}
    firing = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    return {
        "name": alert or "all is well",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "2h",
                "exp_samples": firing,
            }
        ],
    }
