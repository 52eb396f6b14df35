"""The sums of a table's content are a cache: gone, torn or older than the table at any moment, they change no answer."""

import os
import shutil

import pytest

from lakehouse.storage.delta import delta_log, housekeeping
from lakehouse.storage.disk import layout
from lakehouse.storage.log import table_content
from lakehouse.storage.log.table_content import Content, Stored
from support.small_log import Log

HOUR = "2026-01-01-00"


@pytest.fixture
def log(tmp_path, monkeypatch) -> Log:
    monkeypatch.setattr(table_content, "_SETTLED", 20 * 10**6)  # two ticks of a kernel
    log = Log(tmp_path)
    log.append(3)
    return log


def content(log: Log) -> Content:
    return table_content.content(log.settings, log.table)


def noted(log: Log) -> Content:
    """Returns the content once its summary is on disk."""
    note(log).unlink(missing_ok=True)
    while not note(log).exists():
        read = content(log)
    return read


def note(log: Log):
    return layout.note(log.settings, log.table, "content.json")


def a_file(log: Log):
    return delta_log.data_file(log.path, delta_log.files(log.path)[0])


def test_of_a_table_that_stays_as_it_is_nothing_is_read(log, monkeypatch):
    before = noted(log)
    assert before == Content(2, {HOUR: Stored(3)}) and before.rows == 3
    for name in ("files", "latest", "lost"):
        monkeypatch.setattr(delta_log, name, None)
    assert content(log) == before


@pytest.mark.parametrize("disturbance", ["deleted", "torn", "garbage", "older", "of another"])
def test_a_summary_that_is_wrong_changes_nothing(log, disturbance):
    noted(log)
    before = note(log).read_text()
    log.append(1)
    noted(log)
    match disturbance:
        case "deleted":
            note(log).unlink()
        case "torn":
            note(log).write_text(before[:40])
        case "garbage":
            note(log).write_text('{"commit": 5}')
        case "older":
            note(log).write_text(before)
        case "of another":
            shutil.copytree(log.path, log.path.with_name("copy"))
            shutil.rmtree(log.path)
            log.path.with_name("copy").rename(log.path)
            log.append(1)
    assert content(log).rows == (5 if disturbance == "of another" else 4)


def test_a_commit_is_noticed_though_its_files_were_there_before(log):
    noted(log)
    commit = delta_log.commit_file(log.path, 2)
    shutil.copy(commit, delta_log.commit_file(log.path, 3))
    assert content(log).version == 3


def test_a_file_that_goes_is_missing_until_it_comes_back(log):
    whole, file = noted(log), a_file(log)
    kept = file.rename(log.path / "elsewhere")
    lost = content(log).lost
    assert [(each.partition, each.rows) for each in lost] == [(HOUR, 1)]
    assert content(log).lost == lost
    kept.rename(file)
    assert noted(log) == whole
    folder = os.stat(file.parent)
    file.unlink()
    os.utime(file.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))
    assert content(log).lost == lost, "whatever the time of the folder says"
    shutil.rmtree(file.parent)
    assert content(log).lost[0].rows == 3


def test_what_has_changed_just_now_is_not_noted(log, monkeypatch):
    monkeypatch.setattr(table_content, "_SETTLED", 5 * 10**9)
    assert content(log).rows == 3 and not note(log).exists()


def test_a_compaction_leaves_the_rows_and_a_table_that_is_gone_has_none(log):
    noted(log)
    housekeeping.compact(log.path, [HOUR])
    assert content(log) == Content(3, {HOUR: Stored(3)})
    shutil.rmtree(log.path)
    assert content(log) == Content(-1, {})
