"""The table of docs/how-to/secrets.md: a function that uses a secret works, and no file below the root has its value."""

import hmac
import importlib
import re

from lakehouse.testing import Stage
from support import ROOT

KEY = "s3cret-key-of-a-hash"
PAGE = (ROOT / "docs" / "how-to" / "secrets.md").read_text()


def test_the_table_of_the_page_uses_the_secret_and_keeps_its_name_alone(
    spark, tmp_path, monkeypatch
):
    monkeypatch.setenv("PSEUDONYM_KEY", KEY)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = tmp_path / "tables_with_a_secret.py"
    module.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    tables = importlib.import_module(module.stem)
    # the session is older than the variable: a job's workers have both by themselves
    monkeypatch.setitem(spark.sparkContext.environment, "PSEUDONYM_KEY", KEY)
    spark.sparkContext.addPyFile(str(module))
    stage = Stage(spark, tmp_path / "root", tables)
    row = {"user": "ann", "page": "/", "at": "2026-01-01T12:00:00Z"}
    stage.feed("visits", [row, row | {"user": "bob"}])
    users = {row["user"] for row in stage.rows("visits").collect()}
    assert users == {
        hmac.new(KEY.encode(), user.encode(), "sha256").hexdigest() for user in ("ann", "bob")
    }
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]
