"""From which file each module of tables was imported: a job and the process that looks at it must run the same code."""

import sys

from lakehouse.settings import Settings
from streaming_jobs.progress import JobStatus


def origins(settings: Settings) -> dict[str, str]:
    """Module of tables -> its file, of this process, which has loaded the catalogue."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in settings.tables}
    return {name: str(file) for name, file in files.items() if file}


def differing(settings: Settings, status: JobStatus) -> list[str]:
    """What is to be said if the job's process imported other files than this one has."""
    ours = origins(settings) if status.alive and status.place.is_here else {}
    return [
        f"tables={name!r}: the job runs {status.code[name]}, and this command has read {file}: one name is one module, or they "
        f"disagree; set PYTHONPATH for both to the folder that is meant, then `lakehouse stream restart {status.pipeline}`"
        for name, file in ours.items()
        if status.code.get(name, file) != file
    ]
