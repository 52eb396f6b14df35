"""The jar of our own classes is that of their sources."""

from tools import java_classes


def test_the_jar_was_made_of_these_sources():
    assert java_classes.sum_of_jar() == java_classes.sum_of_sources(), (
        "a source has changed: run python -m tools.java_classes, and commit the jar with it"
    )
