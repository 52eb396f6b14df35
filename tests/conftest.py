"""What the rooms of the tests share: one Spark session, and one small lakehouse to look at."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import s3_server
from lakehouse import logs
from lakehouse.examples.sensors import tables as sensors
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.disk import locks
from lakehouse.storage.disk.files import remove_tree
from lakehouse.testing import Stage
from stories.suites import Grounds, Player
from stories.work import INTERPRETED, QUICK_JVM
from support import both_ways

_LONG = (
    "ui",
    "equivalence",
    "bank",
    "tutorials",
    "outages",
    "readme",
    "scheduled_runs",
    "processes",
    "supervision",
    "savepoints",
    "savepoints_of_a_job",
    "nexmark",
    "windows",
    "checkpoints",
    "several_inputs",
    "cluster",
    "project",
    "replay",
    "joined_topics",
    "backpressure",
    "backfill_killed",
    "full_disk",
    "metrics",
    "torn_commit_log_of_a_job",
    "windows_of_windows",
    "quiet_with_a_broker",
    "propagate",
    "groups",
    "keyed",
    "serve",
    "streaming_job",
    "assets",
    "updates",
    "backfill",
)


_OTHER_THIRDS: pytest.StashKey[list[pytest.Item]] = pytest.StashKey()
_left_out: set[str] = set()


def pytest_configure() -> None:
    logs.configure(Settings())  # as what runs as a process does


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--interpreted",
        action="store_true",
        help="Spark interprets the plans of the tests, whose rows are few",
    )
    parser.addoption(
        "--on-s3",
        action="store_true",
        help="stories and stages have their root in an S3 server that loses one answer in 20, and refuses one request",
    )
    parser.addoption(
        "--turn", type=int, help="of the tests marked turn this third alone: 0, 1 or 2"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files that take longest first: no worker is to be left alone with one at the end.

    Tests of a file that share a fixture go to one worker (`--dist loadgroup`): each would make it for itself.
    """
    if (third := config.getoption("--turn")) is not None:
        turns = [(item, item.get_closest_marker("turn")) for item in items]
        other_thirds = [item for item, turn in turns if turn and turn.args[0] != third]
        items[:] = [item for item, turn in turns if not turn or turn.args[0] == third]
        config.hook.pytest_deselected(items=other_thirds)
        config.stash[_OTHER_THIRDS] = other_thirds
    places = {f"test_{name}.py": place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(_LONG)))
    for item in items:
        known = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        shares = any(found[-1].scope == "module" for found in known)
        if shares and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish(session: pytest.Session) -> None:
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if session.config.getoption("loadgroup", False) and grouped and "@" not in grouped[0].nodeid:
        raise pytest.UsageError(
            f"pytest={pytest.__version__}: pytest-xdist has put no group into {grouped[0].nodeid}, so each worker would make the "
            "fixtures of that file for itself; use the versions of requirements.lock"
        )


@pytest.fixture(scope="session")
def quick_jvm() -> dict[str, str]:
    return QUICK_JVM


@pytest.fixture(scope="session")
def grounds(pytestconfig):
    """Makes folders for roots: on a disk, or in an S3 server."""
    if not pytestconfig.getoption("on_s3"):
        yield Grounds()
        return
    faults = s3_server.Faults(lost=0.05, refused=0.05)
    with s3_server.running(faults):
        yield Grounds(s3_server.folder("tests"))
        assert faults.counts["lost"] and faults.counts["refused"]


@pytest.fixture(scope="session")
def spark(pytestconfig, grounds):
    """The session of all tests."""
    jvm = QUICK_JVM | (INTERPRETED if pytestconfig.getoption("interpreted") else {})
    spark = spark_session.create(
        Settings(
            root=grounds.within or Settings().root,
            jars=from_environment().jars,
            spark_conf=jvm,
            shuffle_partitions=1,
            module_path=(Path(__file__).parent,),  # Python workers import what tests share
        ),
        "tests",
    )
    both_ways.compared()
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def filled(spark, tmp_path_factory, worker_id) -> Path:
    """The root of a lakehouse with the tables of `sensors`: three hours, with late and bad rows. Copy it to change it."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "filled"
    # the first worker fills it for both
    with locks.alone(root.with_suffix(".lock"), 240):
        if not root.exists():
            beside = root.with_suffix(".new")
            _fill(Stage(spark, beside, sensors))
            beside.rename(root)
    return root


def _fill(stage: Stage) -> None:
    for hour in range(3):
        rows = [
            _reading(f"sensor-{i % 3}", f"{hour:02}:{i:02}:{i:02}", f"{50 + i}.{hour}0")
            for i in range(0, 60, 7)
        ]
        late = (
            [
                _reading("sensor-1", time, "40.00")
                for time in (f"{hour - 1:02}:59:59", f"{hour:02}:30:00")
            ]
            if hour
            else []
        )
        stage.feed("sensor_readings", [*rows, b"\xff not text", "\x1b[31mjunk", None])
        stage.feed("sensor_readings", [*late, _reading("probe", f"{hour:02}:59:00", "60.00")])
    stage.advance("sensor_readings", _reading("sensor-0", "03:10:00", "60.00"))
    stage.run("valid_readings", "sensor_averages")


@pytest.fixture
def stage_of(player):
    """Makes stages in folders that go with the test: of a module that is asked for again, copies."""
    folders = []

    def make(module, *, early: bool = False) -> Stage:
        folders.append(player.grounds.new())
        return player.empty(module, early=early).copied(folders[-1])

    yield make
    for folder in folders:
        remove_tree(folder)


@pytest.fixture(scope="session")
def player(spark, grounds):
    """Plays random stories; the tables of each suite are made once."""
    player = Player(spark, grounds)
    yield player
    player.close()


@pytest.fixture
def fresh_seed() -> int:
    """Another one each time, by the clock."""
    return time.time_ns() // 1000 % 1_000_000_000


@pytest.fixture
def say(record_property) -> Callable[[str, int, Counter[str]], None]:
    """Has the closing summary show by which seed how many stories were told, and what occurred in them."""

    def said(name: str, seed: int, occurred: Counter[str]) -> None:
        counts = ", ".join(f"{what} {times}" for what, times in sorted(occurred.items()))
        record_property("stories", f"{name}, seed {seed}: {counts}")

    return said


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        other_thirds = session.config.stash.get(_OTHER_THIRDS, [])
        session.config.workeroutput["left_out"] = [item.nodeid for item in other_thirds]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    _left_out.update(getattr(node, "workeroutput", {}).get("left_out", ()))


def pytest_terminal_summary(terminalreporter) -> None:
    if _left_out:
        terminalreporter.section("not run: the other two thirds of the tests that take turns")
        for name in sorted(_left_out):
            terminalreporter.write_line(name)
    reports = [
        r
        for state in ("passed", "failed")
        for r in terminalreporter.stats.get(state, ())
        if r.when == "call"
    ]
    lines = [
        value for report in reports for name, value in report.user_properties if name == "stories"
    ]
    if lines:
        terminalreporter.section("random stories: what occurred in how many of them")
        for line in lines:
            terminalreporter.write_line(line)


def _reading(sensor: str, time: str, fahrenheit: str) -> dict[str, str]:
    return {"sensor_id": sensor, "event_time": f"2026-01-01T{time}Z", "temperature_f": fahrenheit}
