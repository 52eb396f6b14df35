"""The tutorials, typed from an empty folder: each page shows what its commands print."""

import json
from collections.abc import Iterator

import pytest

from tools import tutorials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parallel,
    pytest.mark.turn(2),
    pytest.mark.timeout(900),
]


class Course:
    """The pages in their order, played by one reader: one project, one broker, one job."""

    def __init__(self, reader: tutorials.Reader) -> None:
        self.reader, self.left = reader, list(tutorials.PAGES)

    def check(self, name: str) -> None:
        """Plays the pages up to this one, and compares each. None is left after one that differs."""
        while self.left:
            page, *others = self.left
            self.left = []
            shown, played = page.read_text(), self.reader.play(page)
            assert shown == played, f"{page.name}:\n{tutorials.difference(shown, played)}"
            self.left = others
            if page.name == name:
                return
        raise AssertionError(f"{name}: a page before it has failed")


@pytest.fixture(scope="module")
def course(tmp_path_factory, quick_jvm) -> Iterator[Course]:
    folder = tmp_path_factory.mktemp("tutorials")
    environment = tutorials.environment() | {"LAKEHOUSE_SPARK_CONF": json.dumps(quick_jvm)}
    with tutorials.Reader(folder, environment) as reader:
        yield Course(reader)


@pytest.mark.parametrize("name", tutorials.NAMES)
def test_a_page_shows_what_its_commands_print(course, name):
    course.check(name)
