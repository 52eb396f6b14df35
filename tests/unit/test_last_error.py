"""Why a process ended, by its log."""

import json

import pytest

from lakehouse.settings import Settings
from streaming_jobs import progress
from streaming_jobs.supervision import control_loop, desired
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.job_logs import last_error, log_path

AT = "2026-01-01T00:00:00.000+00:00"
JVM = "WARNING: Using incubator modules: jdk.incubator.vector"


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], ""),
        (['{"orders": 3}', '{"message": 3}', f"{AT} progress: table=clicks: running", "7"], ""),
        ([JVM], ""),
        ([JVM, f"{AT} warning: no error: of any kind", "printed by a function"], ""),
        ([f"{AT} error: topic=x: it is gone", JVM], "topic=x: it is gone"),
        (["error: refused", "printed"], "refused"),
        (["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: of it", JVM], "ValueError: of it"),
        ([f"{AT} error: no", "Traceback (most recent call last):", "KeyError: 'x'"], "KeyError: 'x'"),
        (["KeyboardInterrupt"], "KeyboardInterrupt"),
        (["Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space", JVM],
         "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space"),
        (["26/01/01 00:00:00 ERROR Executor: Exception in task 0"], "26/01/01 00:00:00 ERROR Executor: Exception in task 0"),
        (["# There is insufficient memory for the Java Runtime Environment to continue."],
         "# There is insufficient memory for the Java Runtime Environment to continue."),
        ([json.dumps({"level": "error", "message": "a\nb"}), json.dumps({"level": "warning", "message": "c"})], "b"),
        ([json.dumps({"level": "error", "message": "a", "traceback": "T\nOSError: x"}), "7", "{}"], "OSError: x"),
    ],
)  # fmt: skip
def test_the_last_error_of_a_log_is_the_reason(tmp_path, lines, error):
    settings = Settings(root=tmp_path)
    log = log_path(settings, "sensors")
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(lines) + "\n")
    assert last_error(settings, "sensors") == error
    no_pid = 2**22 + 1
    desired.note(settings, "sensors", Event(progress.now(), "started", "asked", no_pid, 1.0))
    seen = control_loop.observe(settings, "sensors")
    assert (seen.state, seen.error) == ("failed" if error else "dead", error)
