"""The settings of Dagster that ship."""

import shutil
from pathlib import Path

from dagster import DagsterInstance
from dagster._core.run_coordinator import QueuedRunCoordinator

from support import ROOT


def test_a_run_that_cannot_start_in_time_is_tried_again(tmp_path: Path):
    shutil.copy(ROOT / "assets" / "dagster.yaml", tmp_path)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        coordinator = instance.run_coordinator
        assert isinstance(coordinator, QueuedRunCoordinator)
        queue = instance.get_concurrency_config().run_queue_config
        assert queue and queue.max_user_code_failure_retries == 10
        assert queue.user_code_failure_retry_delay == 60 and queue.max_concurrent_runs == 4
        assert instance.run_monitoring_start_timeout_seconds == 600
        assert instance.code_server_process_startup_timeout == 600
        pools = instance.get_concurrency_config().pool_config
        assert pools.default_pool_limit == 1
