"""`lakehouse doctor`: what it says of this machine."""

from lakehouse.cli import doctor
from lakehouse.runtime import cds_archive
from lakehouse.settings import Settings


def test_a_missing_class_archive_is_a_note_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(cds_archive, "archive", lambda program: tmp_path / f"{program}.jsa")
    (tmp_path / "kafka.jsa").touch()
    finding = doctor._archives(Settings(), "archives")
    assert finding.state == "note" and "of spark:" in finding.found
    assert finding.remedy.startswith("`make setup`")
    (tmp_path / "spark.jsa").touch()
    assert doctor._archives(Settings(), "archives").state == "ok"


def test_no_archive_is_looked_for_without_java(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    finding = doctor._archives(Settings(), "archives")
    assert finding.state == "note" and "nowhere" in finding.found
