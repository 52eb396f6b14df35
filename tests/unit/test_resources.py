"""Which process runs which pipeline, and with what: what settings may say of it."""

from dataclasses import replace

import pytest

from lakehouse.declare import catalog
from lakehouse.errors import JobError, SettingsError
from lakehouse.settings import Resources, Settings, from_environment, to_environment
from lakehouse.storage.disk import layout
from streaming_jobs.supervision import lease

BOTH = ("lakehouse.examples.sensors.tables", "lakehouse.examples.ads.tables")
TOGETHER = {"all": ("sensors", "ads")}


def test_a_pipeline_has_resources_of_its_own_and_the_others_those_of_all():
    given = {
        "LAKEHOUSE_RESOURCES__ADS__DRIVER_MEMORY": "2g",
        "LAKEHOUSE_RESOURCES__ADS__SPARK_MASTER": "local[4]",
        "LAKEHOUSE_RESOURCES__ADS__STATE_MEMORY_MB": "64",
        "LAKEHOUSE_DRIVER_MEMORY": "3g",
    }
    settings = from_environment(to_environment(from_environment(given)))
    own, other = settings.for_pipeline("ads"), settings.for_pipeline("sensors")
    assert (own.driver_memory, own.spark_master, own.state_memory_mb) == ("2g", "local[4]", 64)
    assert (other.driver_memory, other.spark_master, other.state_memory_mb) == (
        "3g",
        "local[2]",
        512,
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "MEMORY",
            "2g",
            "LAKEHOUSE_RESOURCES__ADS__MEMORY: .*; did you mean LAKEHOUSE_RES.*_MEMORY",
        ),
        ("DRIVER_MEMORY", "", "resources of ads: driver_memory='': a number and its unit"),
        ("DRIVER_MEMORY", "2 gigabytes", "resources of ads: .*a number and its unit"),
        ("STATE_MEMORY_MB", "1", "resources of ads: .*at least 16"),
        ("STATE_MEMORY_MB", "much", "resources.ads.state_memory_mb='much': a whole number"),
        (
            "ROOT",
            "/elsewhere",
            "LAKEHOUSE_RESOURCES__ADS__ROOT: .*there are driver_memory, .*step_rows",
        ),
        ("SCHEDULER_POOLS", "/nowhere", "resources of ads: scheduler_pools='/nowhere': a file"),
    ],
)
def test_resources_that_cannot_be_are_refused_at_the_start(name, value, said):
    with pytest.raises(SettingsError, match=said):
        from_environment({f"LAKEHOUSE_RESOURCES__ADS__{name}": value})


def test_pipelines_that_share_a_process_are_one_by_its_name():
    settings = from_environment({"LAKEHOUSE_TOGETHER__ALL": "sensors, ads"})
    found, apart = catalog.load(settings), catalog.load(Settings())
    assert found.pipelines() == ["all"] and apart.pipelines() == ["sensors", "ads"]
    assert [t.name for t in found.of_pipeline("all")] == [t.name for t in apart]
    assert [t.code_version for t in found] == [t.code_version for t in apart], (
        "the same declarations, and the same checkpoints"
    )
    assert settings.members("all") == ("sensors", "ads") and settings.members("visits") == (
        "visits",
    )
    assert catalog.load(
        Settings(
            together={"ads": ("ads", "sensors")}, resources={"ads": Resources(driver_memory="2g")}
        )
    ).pipelines() == ["ads"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"together": {"all": ("sensors", "visits")}},
            "together of all=.*'visits': no such pipeline",
        ),
        ({"together": {"ads": ("sensors",)}}, "together of ads=.*'ads': another pipeline's name"),
        (
            {"together": {"a": ("sensors",), "b": ("ads", "sensors")}},
            "'sensors': a pipeline runs in one process",
        ),
        ({"together": {"a": ()}}, r"together of a=\(\): the pipelines that share a process"),
        (
            {"together": TOGETHER, "freshness": {"ads": "every 10 seconds"}},
            "freshness of ads=.*no such pipeline.*one of all",
        ),
        (
            {"resources": {"visits": Resources(driver_memory="2g")}},
            r"resources of visits=Resources\(driver_memory='2g'\): there is no such pipeline",
        ),
    ],
)
def test_what_cannot_be_together_is_refused_at_the_start(given, said):
    with pytest.raises(SettingsError, match=said):
        catalog.load(Settings(**given))


def test_no_pipeline_of_a_shared_process_is_run_by_another(tmp_path):
    settings = Settings(root=tmp_path, tables=BOTH)
    shared = replace(settings, together=TOGETHER)
    with lease.acquire(shared, "all") as turn:
        turn.check()
        assert lease.others(settings, "ads") == {"all"} and lease.others(shared, "all") == set()
        with (
            pytest.raises(JobError, match=r"pipeline='ads'.*one process fills a table"),
            lease.acquire(settings, "ads"),
        ):
            pass
        # as on a file system that does not lock
        layout.job_file(settings, "ads", "lease").unlink()
        with (
            lease.acquire(settings, "ads"),
            pytest.raises(JobError, match="pipeline='ads', epoch=1: pid="),
        ):
            turn.check()
    with (
        lease.acquire(settings, "sensors"),
        pytest.raises(JobError, match=r"pipeline='sensors'.*one process fills a table"),
        lease.acquire(shared, "all"),
    ):
        pass
