"""Which process a job's is, looked at while that process says its first word."""

import os
from concurrent.futures import ThreadPoolExecutor

from lakehouse import processes
from lakehouse.settings import Settings
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import desired, supervisor
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.holders import here

OLD, JOB = 2**22 + 1, "sensors"  # no pid is that large


def test_a_process_that_speaks_is_never_taken_for_the_one_before(tmp_path):
    settings = Settings(root=tmp_path)
    pid, born = os.getpid(), processes.started(os.getpid())
    before = JobStatus(
        JOB, OLD, 1.0, 0, 0.0, "running", "2026-01-01T00:00:00+00:00", "", place=here()
    )
    progress.write(settings, before)
    desired.note(settings, JOB, Event(progress.now(), "started", "asked for", pid, born))
    spoken = JobStatus(JOB, pid, born, 0, 0.0, "starting", progress.now(), "", place=here())
    found, before_it_spoke = set(), 0
    with ThreadPoolExecutor(1) as process:
        for _ in range(150):
            progress.write(settings, before)
            speaking = process.submit(progress.write, settings, spoken)
            while not speaking.done():
                found.add(supervisor.identity(settings, JOB))
                before_it_spoke += 1
    assert before_it_spoke > 50, "looks while it spoke"
    assert found == {(pid, born)}
