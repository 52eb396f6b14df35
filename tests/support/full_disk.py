"""For `test_full_disk`, in a mount namespace of its own: the job of the sensors on a disk that is full for a while.

    unshare --mount python -m support.full_disk KEEP        (root, broker and bounds from the environment)

Its lakehouse is a file system of 160 MiB, which ends with the process; KEEP is where it is copied to before.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from lakehouse.settings import from_environment
from streaming_jobs.supervision import control_loop, desired, supervisor
from support.sensors_job import arrived, awaited, produce, supervised


def main() -> None:
    settings = from_environment()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(settings.root)], check=True
    )
    sent = produce(settings, 0, 10)
    first = supervisor.start(settings, "sensors", wait=120, by="a test")
    ballast = settings.root / "ballast"
    with supervised(settings, "sensors"):
        awaited(lambda: arrived(settings, "sensor_readings") == sent, "the first lot recorded")
        fill(ballast)
        sent += produce(settings, 10, 20)
        awaited(
            lambda: not supervisor.status(settings, "sensors").alive,
            "the process ends, for it cannot write",
            240,
        )
        full = datetime.now(UTC)
        fill(ballast)  # what the process may have given back
        decided = control_loop.step(settings, "sensors")
        assert decided.action == "nothing" and "the disk is full" in decided.why, decided
        sent += produce(settings, 20, 30)
        ballast.unlink()
        awaited(lambda: arrived(settings, "sensor_readings") == sent, "all recorded", 240)
        now, events = (
            supervisor.stop(settings, "sensors", by="a test"),
            desired.history(settings, "sensors"),
        )
    assert now.state == "stopped" and now.pid != first.pid, now
    again = [e for e in events if e.what == "restarted"]
    assert len(again) == 1 and again[0].moment > full, again
    shutil.copytree(settings.root, sys.argv[1])
    print(json.dumps({"sent": sent}))


def fill(ballast: Path) -> None:
    """Writes until nothing more goes onto the disk."""
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    os.write(file.fileno(), bytes(size))
            except OSError as err:
                assert err.errno == errno.ENOSPC, err


if __name__ == "__main__":
    main()
