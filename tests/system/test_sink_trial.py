"""The test kit of sinks passes the sink of the docs, and finds sinks that are wrong."""

import pytest

from lakehouse import file_folder
from lakehouse.errors import DeclarationError
from lakehouse.sinks import trial
from lakehouse.testing import assert_exactly_once
from support import sinks

pytestmark = [pytest.mark.slow, pytest.mark.parallel]


def test_the_sink_of_the_docs_passes_its_own_test(tmp_path):
    of_docs, ends = dict(vars(sinks)), []
    exec(sinks.DOCS[1], of_docs)
    of_docs["assert_exactly_once"] = lambda *given: ends.append(assert_exactly_once(*given))
    of_docs["test_my_sink"](tmp_path)
    assert all(ends[0][point] for point in trial.DEATHS)
    assert ends[0]["replaced, opened"] == ends[0]["replaced, written"] == 1
    assert ends[0]["versions"] > 8


def test_a_folder_of_files_passes(tmp_path):
    out = str(tmp_path / "out")
    target = file_folder(out, key=["account", "region"], partition_by="region", name="accounts")
    ends = assert_exactly_once(target, tmp_path / "lakehouse", lives=4)
    assert set(ends) > {*trial.DEATHS[:4], "replaced, opened", "replaced, written"}


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (sinks.NotesLate, r"killed \(\w+\), the target (has rows|is at version)"),
        (sinks.NotesEarly, r"killed \(\w+\), the target is at version \d+, and \d+ keys differ"),
        (sinks.RefusesNobody, r"stood still \(opened\) committed version \d+ after another had"),
        (sinks.Appends, r"the target is at version \d+, and \d+ keys differ from it: .*\(twice\)"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_a_sink_that_is_wrong_is_found(tmp_path, sink, said):
    target = sinks.Wrong("accounts", ("account",), "send", sink, str(tmp_path / "accounts.db"))
    lives = 0 if sink is sinks.RefusesNobody else 7  # who is replaced needs no kill
    with pytest.raises(AssertionError, match=said):
        assert_exactly_once(target, tmp_path / "lakehouse", lives=lives)


def test_a_key_that_the_table_of_the_trial_does_not_have_is_refused(tmp_path):
    target = sinks.Wrong("accounts", ("id",), "send", sinks.SqliteSink, "")
    with pytest.raises(DeclarationError, match="add account to the key"):
        assert_exactly_once(target, tmp_path)
