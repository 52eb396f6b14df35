"""The output of the commands of the reconciliation."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from batch_jobs.views import range_of
from lakehouse.cli import console
from lakehouse.ranges import brief

if TYPE_CHECKING:
    from batch_jobs.diff import Diff
    from batch_jobs.due import Known, Outcome
    from batch_jobs.repair import Planned, Repaired, Unreconciled
    from lakehouse.reconcile.coverage import Coverage
    from lakehouse.sinks.comparison import Comparison
    from lakehouse.storage.log.certificates import Certificate

_KEYS = 20  # the most differing keys that are shown


def show_coverage(coverages: "list[Coverage]", since: str, as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(each) | {"share": each.share} for each in coverages])
        return
    console.print_columns(
        coverages,
        {
            "table": lambda c: c.table,
            "closed": lambda c: c.partitions,
            "reconciled": lambda c: f"{c.share:.1%}",
            "under this declaration": lambda c: c.reconciled_now,
            "oldest unreconciled": lambda c: c.oldest_unreconciled,
            "different": lambda c: len(c.different),
            "pending": lambda c: len(c.pending),
            "unverifiable": lambda c: len(c.unverifiable),
            "seconds a day": lambda c: f"{c.seconds:.1f}",
        },
    )
    for each in coverages:
        if each.before_since:
            console.print_text(
                f"{each.table}: {each.before_since:,} partitions begin before LAKEHOUSE_SINCE={since}, so they are never "
                f"due; set an earlier day, or run `lakehouse reconcile run {each.table}`"
            )
        for lost in each.lost:
            console.print_text(
                f"{each.table} {lost.partition}: data file {lost.file} ({lost.rows:,} rows) is missing; `lakehouse reconcile "
                f"repair {each.table}` computes the partition again"
            )
        for c in each.different:
            counts = f"{c.missing:,} missing, {c.extra:,} extra, {c.changed:,} changed"
            console.print_text(f"{c.table} {range_of(c)} DIFFERENT: {counts}\n  {c.cause}")
            _print_examples(c.examples[:3])
        for due in each.changed[:20]:
            console.print_text(f"{each.table} {due.partition} is to be reconciled again: {due.why}")


def _print_examples(examples: Iterable[str]) -> None:
    for example in examples:
        console.print_text(f"  {example}")


def show_sink(comparison: "Comparison", as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(comparison) | {"verdict": comparison.verdict}])
        return
    console.print_text(
        f"{comparison.target} {comparison.verdict}: version {comparison.version} of {comparison.table}, {comparison.rows:,} rows"
    )
    if comparison.repeated:
        console.print_text(
            f"{comparison.repeated:,} rows of {comparison.table} are there more than once; the target has each key once"
        )
    if comparison.held:
        console.print_text(
            f"corrections of versions {', '.join(map(str, comparison.held))} are held back; "
            f"`lakehouse reconcile sink {comparison.target} --repair` sends what differs"
        )
    if comparison.differences:
        shown = comparison.differences[:_KEYS]
        console.print_rows(("key", "why"), ((each.key, each.cause) for each in shown))
        if (more := len(comparison.differences) - len(shown)) > 0:
            console.print_text(f"and {more:,} more keys")


def show_differing(plans: "list[Planned]", unreconciled: "Unreconciled", as_json: bool) -> None:
    if as_json:
        console.print_json(plans)
    elif plans:
        names = ("partition", "rows that differ", "cause")
        console.print_rows(names, ((p.partition, p.rows, p.cause) for p in plans))
    elif not unreconciled.verdictless:
        console.print_text("no partition is known to differ; `lakehouse reconcile run` looks again")
    for line in _unknown(unreconciled):
        console.print_note(line)
    console.print_note("nothing was changed")


def _unknown(unreconciled: "Unreconciled") -> list[str]:
    """Returns a line for each reason why it is not known whether anything differs."""
    again = f"`lakehouse reconcile run {unreconciled.table}` looks"
    lines = [unreconciled.failed] if unreconciled.failed else []
    if unreconciled.unknown:
        count = f"{len(unreconciled.unknown)} of {unreconciled.partitions} closed partitions"
        lines.append(f"{count} have no verdict yet: {brief(unreconciled.unknown)}")
    if unreconciled.changed:
        lines.append(
            f"{len(unreconciled.changed)} were changed since they had one: {brief(unreconciled.changed)}"
        )
    return [f"{line}; {again}" for line in lines]


def show_repaired(done: "list[Repaired]", as_json: bool) -> None:
    if as_json:
        console.print_json(done)
        return
    names = ("partition", "rows that differed", "cause", "Delta version", "verdict")
    console.print_rows(names, ((r.partition, r.rows, r.cause, r.version, r.verdict) for r in done))


def show_certificate(certificate: "Certificate", as_json: bool) -> None:
    if as_json:
        console.print_json([certificate])
        return
    c = certificate
    digests = (c.checksum_in_table, c.checksum_recomputed)
    in_table, recomputed = (digest.partition(":")[2] for digest in digests)
    both = f"{in_table} in the table, {recomputed} recomputed"
    facts = {
        "table": c.table,
        "range": range_of(c),
        "rows in table": c.rows_in_table,
        "rows recomputed": c.rows_recomputed,
        "checksum": in_table if in_table == recomputed else both,
        "verdict": c.verdict,
        "seconds": f"{c.seconds:.1f}",
    }
    console.print_facts(facts)
    if c.examples:
        console.print_text(
            f"{c.missing:,} missing, {c.extra:,} extra, {c.changed:,} changed; the first {len(c.examples)}:"
        )
        _print_examples(c.examples)
    if c.rows_by_batch_runs:
        console.print_text(
            f"{c.rows_by_batch_runs:,} rows were written by batch runs, so they say nothing about the stream"
        )
    for why in filter(None, (c.cause, c.detail)):
        console.print_text(why)
    if not c.rows_recomputed and not c.rows_in_table:
        console.print_text("no row was compared, so nothing is reconciled")


def show_outcome(outcome: "Outcome", as_json: bool) -> None:
    """Prints the outcome of a range or a table in one line; a failure is printed as an error, too."""
    from batch_jobs.due import Failed

    if as_json:
        console.print_json([outcome])
    if isinstance(outcome, Failed):
        console.print_error(f"{outcome.table}: {outcome.detail}")
    elif not as_json:
        console.print_text(_line(outcome))


def _line(outcome: "Certificate | Repaired") -> str:
    from batch_jobs.repair import Repaired

    if isinstance(outcome, Repaired):
        return (
            f"{outcome.table} {outcome.partition} repaired, {outcome.verdict}: {outcome.rows:,} rows differed, "
            f"Delta version {outcome.version}; {outcome.cause}"
        )
    counts = f"{outcome.rows_in_table:,} rows in the table, {outcome.rows_recomputed:,} recomputed"
    if outcome.verdict == "DIFFERENT":
        counts += (
            f"; {outcome.missing:,} missing, {outcome.extra:,} extra, {outcome.changed:,} changed"
        )
    why = "; ".join(filter(None, (counts, outcome.cause, outcome.detail)))
    return f"{outcome.table} {range_of(outcome)} {outcome.verdict}: {why}; {outcome.seconds:.1f} s"


def show_due(done: "list[Outcome]", known: "list[Known]") -> None:
    """Prints the remarks at the end: that nothing was due, and which ranges still differ."""
    if not done:
        console.print_note(
            "nothing is due: nothing has closed or was changed since it was reconciled"
        )
    for each in known:
        console.print_note(
            f"{each.table} {range_of(each.span)} is known to differ; `lakehouse reconcile status {each.table}` says why, and "
            f"`lakehouse reconcile repair {each.table}` rewrites it"
        )


def show_diff(diff: "Diff", as_json: bool) -> None:
    if as_json:
        counts = [p.counts for p in diff.partitions]
        console.print_json([asdict(diff) | {"differs": diff.differs, "partitions": counts}])
        return
    facts = {"table": diff.table, "range": range_of(diff)}
    console.print_facts(facts | {"before": "the present code", "after": diff.code})
    changed = {"declaration": diff.declaration, "column": diff.columns}
    rows = [
        (f"{what} {name}", *pair) for what, pairs in changed.items() for name, pair in pairs.items()
    ]
    if diff.quarantined[0] != diff.quarantined[1]:
        rows.append(("rows quarantined", *diff.quarantined))
    if rows:
        console.print_rows(("what", "before", "after"), rows)
    names = ("partition", "rows before", "rows after", "missing", "extra", "changed")
    console.print_rows(names, (p.counts.values() for p in diff.partitions))
    if diff.examples:
        console.print_text(f"the first {len(diff.examples)}:")
        _print_examples(diff.examples)
    if diff.upstream:
        console.print_text(
            f"other code upstream too: {', '.join(diff.upstream)}; both sides read their stored rows"
        )
    if diff.pending:
        console.print_text(f"pending after a backfill with that code: {', '.join(diff.pending)}")
    console.print_text("rows differ" if diff.differs else "no row differs")
