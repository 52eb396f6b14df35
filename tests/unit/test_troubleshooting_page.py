"""The messages on docs/operate/troubleshooting.md are those of the code, with `…` for each value."""

import ast
import re
from collections.abc import Iterator

from support import ROOT

PACKAGES = ("lakehouse", "streaming_jobs", "batch_jobs")
VALUE = "…"


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) for each in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else VALUE


def messages() -> Iterator[str]:
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr | ast.Constant):
                    yield text_of(node)


def quoted() -> list[str]:
    """What the first column of the tables quotes: messages and reasons, not the files that `test_damaged_files` compares."""
    text = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
    return re.findall(r"^\| `(?![_<]\w+>?/)([^`]+)` \|", text, re.MULTILINE)


def test_each_message_is_one_of_the_code():
    of_code, found = "\n".join(messages()), quoted()
    assert len(found) >= 25
    assert not [
        each for each in found if each.removeprefix(VALUE).removesuffix(VALUE) not in of_code
    ]
