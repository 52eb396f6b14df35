"""What must hold of each version of a keyed table."""

from pyspark.sql import functions as F

from lakehouse.storage.delta.digest import digests_by
from lakehouse.stream.engines import keyed
from lakehouse.testing import Stage


def equal_at_every_version(stage: Stage, name: str) -> int:
    """Asserts that each version of the table is what its function makes of the versions that it read; how many there were."""
    session, seen = stage.session, 0
    kept = session.catalog.table(name)
    for line in session.commit_log(kept).by_stream():
        read = {t.name: line.version_read(t.name) for t in session.catalog.followed_inputs(kept)}
        references = dict(line.inputs["references"])
        expected = keyed.recomputed(session, kept, read, references, line.frontier)
        ours, theirs = digests_by(
            (session.read(kept, line.version), F.lit(1)), (expected, F.lit(1))
        )
        assert ours == theirs, (name, line)
        seen += 1
    return seen
