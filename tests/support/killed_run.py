"""A run of a job of Dagster's, killed by SIGKILL before one of its steps: `python -m support.killed_run JOB CONFIG STEP CALL`.

A process of its own, with the settings of its environment. CONFIG is JSON. Without STEP it runs to its end.
"""

import json
import sys
from contextlib import nullcontext

from assets import definitions
from lakehouse.settings import from_environment
from support.killed_commands import killed_before


def main(job: str, config: str, step: str = "", call: str = "1") -> None:
    wanted = definitions.build(from_environment()).resolve_job_def(job)
    with killed_before(step, int(call)) if step else nullcontext():
        assert wanted.execute_in_process(run_config=json.loads(config)).success


if __name__ == "__main__":
    main(*sys.argv[1:])
