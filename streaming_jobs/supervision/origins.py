"""The files of the modules of tables: a job and the process that looks at it must run the same code."""

import sys

from lakehouse.settings import Settings
from streaming_jobs.progress import JobStatus


def origins(settings: Settings) -> dict[str, str]:
    """Returns the file of each module of tables in this process, which has loaded the catalogue."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in settings.tables}
    return {name: str(file) for name, file in files.items() if file}


def differing(settings: Settings, status: JobStatus) -> list[str]:
    """Returns a remark for each module that the job's process imported from another file than this process."""
    ours = origins(settings) if status.alive and status.place.is_here else {}
    return [
        f"tables={name!r}: the job runs {status.code[name]}, and this command has read {file}: one name is one module, or they "
        f"disagree; set PYTHONPATH for both to the folder that is meant, then `lakehouse stream restart {status.pipeline}`"
        for name, file in ours.items()
        if status.code.get(name, file) != file
    ]
