"""A run of a job of Dagster's, killed by SIGKILL before one of its steps: `python -m support.killed_run JOB CONFIG STEP CALL`.

A process of its own, with the settings of its environment. CONFIG is JSON. Without STEP it runs to its end.
"""

import json
import os
import signal
import sys
from typing import Any

from assets import definitions
from lakehouse.settings import from_environment
from lakehouse.storage import commit_log, delta_writer

_STEPS: dict[str, Any] = {"append": commit_log.CommitLog, "exchange": delta_writer}


def _killed_before(name: str, call: int) -> None:
    owner, left = _STEPS[name], [call]
    step = getattr(owner, name)

    def counting(*given: object, **more: object) -> object:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*given, **more)

    setattr(owner, name, counting)


def main(job: str, config: str, step: str = "", call: str = "1") -> None:
    if step:
        _killed_before(step, int(call))
    wanted = definitions.build(from_environment()).resolve_job_def(job)
    assert wanted.execute_in_process(run_config=json.loads(config)).success


if __name__ == "__main__":
    main(*sys.argv[1:])
