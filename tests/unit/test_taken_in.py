"""A file that is no savepoint leaves nothing behind where it was taken in."""

import io
import tarfile
from pathlib import Path

import pytest

from lakehouse.errors import SavepointError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.versions import restoring


def packed(file: Path, *names: str) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 100_000
            archive.addfile(member, io.BytesIO(bytes(range(250)) * 400))
    return file


def cut(file: Path) -> Path:
    file.write_bytes(packed(file, "one/data").read_bytes()[:-200])
    return file


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda file: packed(file, "one"), "one in it is no folder"),
        (lambda file: packed(file, "one/data", "two/data"), "cannot be read"),
        (lambda file: packed(file, "-one/data"), "a letter or digit first"),
        (lambda file: packed(file, "one/data"), "savepoint=one"),
        (cut, "cannot be read"),
    ],
)
def test_nothing_is_left_of_it(tmp_path, make, told):
    settings = Settings(root=tmp_path / "root")
    with pytest.raises(SavepointError, match=told):
        restoring.take_in(settings, make(tmp_path / "one.tar"))
    assert {path.name for path in layout.savepoints(settings).iterdir()} <= {".lock"}
