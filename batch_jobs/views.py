"""What the commands of batch jobs print."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from lakehouse.cli import console
from lakehouse.storage.commits import NOTHING

if TYPE_CHECKING:
    from batch_jobs.diff import Diff
    from batch_jobs.planning import Backfill, Downstream
    from batch_jobs.repair import Planned, Repaired, Unreconciled
    from lakehouse.batch.late_merge import Dirt
    from lakehouse.maintenance.erasure import Erasure
    from lakehouse.maintenance.replay_quarantine import Replay
    from lakehouse.maintenance.retention import Maintenance
    from lakehouse.ranges import Range
    from lakehouse.reconcile.coverage import Coverage
    from lakehouse.storage.certificates import Certificate
    from lakehouse.storage.commits import Commit
    from lakehouse.storage.handovers import Handover


def show_plan(table: str, planned: "Backfill | None", as_json: bool) -> None:
    if as_json:
        console.print_json([planned or {"table": table, "rebuilt": "whole"}])
    elif planned is None:
        console.print_text(f"{table} would be rebuilt whole: it has no event time")
    else:
        console.print_facts(
            {
                "range": range_of(planned),
                "frontier": planned.frontier,
                "partitions": brief(planned.partitions),
                "rows replaced": planned.rows_replaced,
                "input": planned.input,
                "context": f"[{console.shown(planned.context_start)}, {console.shown(planned.context_end)})",
                "input rows": f"at most {planned.input_rows:,} in {planned.input_files} files, {planned.input_bytes:,} bytes",
                "done before": brief(planned.done) if planned.done else None,
                "then pending": "; ".join(f"{d.table} {range_of(d)}" for d in planned.downstream)
                or None,
                "conflicts": "; ".join(planned.conflicts) or None,
                "estimated time": f"about {planned.estimated_seconds:,.0f} s"
                if planned.estimated_seconds is not None
                else None,
            }
        )
        console.print_note("nothing was changed")


def show_renewed(table: str, dry_run: bool, as_json: bool) -> None:
    """That a keyed or versioned table is, or would be, computed again by its own job."""
    if as_json:
        console.print_json([{"table": table, "outcome": "planned" if dry_run else "renewed"}])
        return
    verb = "would be" if dry_run else "is"
    console.print_text(
        f"{table} {verb} computed again from its whole ingest table when its job is started the next time"
    )


def show_backfill(
    table: str,
    planned: "Backfill | None",
    commits: "Sequence[Commit]",
    pending: "dict[str, list[str]]",
    as_json: bool,
) -> None:
    """What became of each table's partitions; and which of others wait for a batch run now."""
    done = planned.done if planned else ()
    if as_json:
        console.print_json({"outcome": outcome(c), **asdict(c)} for c in commits)
        console.print_json({"outcome": "done before", "table": table, "partition": p} for p in done)
        console.print_json([] if commits or done else [{"outcome": "unchanged", "table": table}])
        return
    if planned is None:
        console.print_text(
            f"{table} was rebuilt"
            if commits
            else f"{table} has these rows already; nothing was written"
        )
        return
    rows = []
    for name in dict.fromkeys([table, *(c.table for c in commits)]):
        mine = [c for c in commits if c.table == name]
        found = Counter(map(outcome, mine))
        span = planned if name == table else replace(mine[0], end=mine[-1].end)
        rows.append(
            (
                name,
                range_of(span),
                found["rewritten"],
                found["unchanged"],
                len(done) if name == table else 0,
                sum(c.written for c in mine if outcome(c) == "rewritten"),
                sum(c.quarantined for c in mine),
                f"{sum(c.seconds for c in mine):.1f}",
            )
        )
    names = (
        "table",
        "range",
        "rewritten",
        "unchanged",
        "done before",
        "rows written",
        "quarantined",
        "seconds",
    )
    console.print_rows(names, rows)
    for name, partitions in pending.items():
        console.print_text(
            f"{name} is PENDING in {brief(partitions)}: follow by `--cascade`, or by a backfill of its own"
        )


def show_handover(
    handover: "Handover", planned: "Backfill | None", commits: "Sequence[Commit]", as_json: bool
) -> None:
    """Where the stream begins, and what was computed behind the handover."""
    if as_json:
        console.print_json([asdict(handover)])
    else:
        console.print_facts(
            {
                "handover": handover.frontier,
                "stream from": f"version {handover.version} of {handover.input}, complete up to the handover at version {handover.until}",
                "read by then": handover.inputs,
            }
        )
    if planned:
        show_backfill(planned.table, planned, commits, {}, as_json)


def outcome(commit: "Commit") -> str:
    return "unchanged" if commit.version == NOTHING else "rewritten"


def show_waiting(found: "dict[str, list[Dirt]]", as_json: bool) -> None:
    rows = [{"table": name, **asdict(d)} for name, dirt in found.items() for d in dirt]
    if as_json:
        console.print_json(rows)
        return
    state = {True: "closed", False: "open: waits until it closes"}
    shown = (
        (
            r["table"],
            r["partition"],
            state[r["closed"]],
            "late rows" if r["since"] else "input rewritten",
        )
        for r in rows
    )
    if rows:
        console.print_rows(("table", "partition", "is", "because of"), shown)
    else:
        console.print_text("no late row waits to be merged")
    console.print_note("nothing was changed")


def show_updates(commits: "list[Commit]", as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(c) for c in commits])
        return
    if not commits:
        console.print_text("no closed partition waited for late rows; nothing was written")
        return
    shown = (
        (c.table, range_of(c), c.written, c.quarantined, c.version, f"{c.seconds:.1f}")
        for c in commits
    )
    console.print_rows(
        ("table", "range", "rows rewritten", "quarantined", "Delta version", "seconds"), shown
    )


def show_maintenance(found: "list[Maintenance]", as_json: bool) -> None:
    if as_json:
        console.print_json(found)
        return
    names = (
        "table",
        "partitions",
        "small files",
        "kept from version",
        "held by",
        "older commits",
        "obsolete files",
    )
    shown = (
        (u.table, len(u.partitions), u.files, u.oldest, u.held_by or None, u.commits, u.obsolete)
        for u in found
    )
    console.print_rows(names, shown)


def show_coverage(found: "list[Coverage]", since: str, as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(each) | {"share": each.share} for each in found])
        return
    names = (
        "table",
        "closed",
        "reconciled",
        "under this declaration",
        "oldest unreconciled",
        "different",
        "pending",
        "unverifiable",
        "seconds a day",
    )
    rows = (
        (
            c.table,
            c.partitions,
            f"{c.share:.1%}",
            c.reconciled_now,
            c.oldest_unreconciled,
            len(c.different),
            len(c.pending),
            len(c.unverifiable),
            f"{c.seconds:.1f}",
        )
        for c in found
    )
    console.print_rows(names, rows)
    for each in found:
        if each.before_since:
            console.print_text(
                f"{each.table}: {each.before_since:,} partitions begin before LAKEHOUSE_SINCE={since}, and Dagster does not "
                f"reconcile them; set an earlier day, or run `lakehouse reconcile run {each.table}`"
            )
        for lost in each.lost:
            console.print_text(
                f"{each.table} {lost.partition}: data file {lost.file} ({lost.rows:,} rows) is missing; `lakehouse reconcile repair "
                f"{each.table}` computes the partition again"
            )
        for c in each.different:
            counts = f"{c.missing:,} missing, {c.extra:,} extra, {c.changed:,} changed"
            console.print_text(f"{c.table} {range_of(c)} DIFFERENT: {counts}\n  {c.cause}")
            console.print_text("\n".join(f"  {example}" for example in c.examples[:3]))
        for due in each.changed[:20]:
            console.print_text(f"{each.table} {due.partition} is to be reconciled again: {due.why}")


def show_differing(found: "list[Planned]", unreconciled: "Unreconciled", as_json: bool) -> None:
    if as_json:
        console.print_json(found)
    elif found:
        console.print_rows(
            ("partition", "rows that differ", "cause"),
            ((p.partition, p.rows, p.cause) for p in found),
        )
    elif not unreconciled.verdictless:
        console.print_text("no partition is known to differ; `lakehouse reconcile run` looks again")
    for line in _unknown(unreconciled):
        console.print_note(line)
    console.print_note("nothing was changed")


def _unknown(found: "Unreconciled") -> list[str]:
    """Where nobody knows whether anything differs, a line each."""
    again = f"`lakehouse reconcile run {found.table}` looks"
    lines = [found.failed] if found.failed else []
    if found.unknown:
        lines.append(
            f"{len(found.unknown)} of {found.partitions} closed partitions have no verdict yet: {brief(found.unknown)}"
        )
    if found.changed:
        lines.append(
            f"{len(found.changed)} were changed since they had one: {brief(found.changed)}"
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
    in_table, recomputed = (
        digest.partition(":")[2] for digest in (c.checksum_in_table, c.checksum_recomputed)
    )
    console.print_facts(
        {
            "table": c.table,
            "range": range_of(c),
            "rows in table": c.rows_in_table,
            "rows recomputed": c.rows_recomputed,
            "checksum": in_table
            if in_table == recomputed
            else f"{in_table} in the table, {recomputed} recomputed",
            "verdict": c.verdict,
            "seconds": f"{c.seconds:.1f}",
        }
    )
    if c.examples:
        console.print_text(
            f"{c.missing:,} missing, {c.extra:,} extra, {c.changed:,} changed; the first {len(c.examples)}:"
        )
        console.print_text("\n".join(f"  {example}" for example in c.examples))
    if c.rows_by_batch_runs:
        console.print_text(
            f"{c.rows_by_batch_runs:,} rows were written by batch runs, so they say nothing about the stream"
        )
    if c.cause:
        console.print_text(c.cause)
    if c.detail:
        console.print_text(c.detail)
    if not c.rows_recomputed and not c.rows_in_table:
        console.print_text("no row was compared, so nothing is reconciled")


def show_diff(found: "Diff", as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(found) | {"differs": found.differs}])
        return
    console.print_facts(
        {
            "table": found.table,
            "range": range_of(found),
            "before": "the present code",
            "after": found.code,
        }
    )
    changed = {"declaration": found.declaration, "column": found.columns}
    rows = [
        (f"{what} {name}", *pair) for what, pairs in changed.items() for name, pair in pairs.items()
    ]
    if found.quarantined[0] != found.quarantined[1]:
        rows.append(("rows quarantined", *found.quarantined))
    if rows:
        console.print_rows(("what", "before", "after"), rows)
    names = ("partition", "rows before", "rows after", "missing", "extra", "changed")
    console.print_rows(
        names, ((getattr(p, name.replace(" ", "_")) for name in names) for p in found.partitions)
    )
    if found.examples:
        console.print_text(
            "\n".join(
                [
                    f"the first {len(found.examples)}:",
                    *(f"  {example}" for example in found.examples),
                ]
            )
        )
    if found.upstream:
        console.print_text(
            f"other code upstream too: {', '.join(found.upstream)}; both sides read their stored rows"
        )
    if found.pending:
        console.print_text(f"pending after a backfill with that code: {', '.join(found.pending)}")
    console.print_text("rows differ" if found.differs else "no row differs")


def show_erasure(found: "Erasure", as_json: bool) -> None:
    if as_json:
        _print_changed(found)
        return
    console.print_facts(
        {
            "table": found.table,
            "rows": found.rows,
            "hours of event time": len(found.hours),
            "quarantined rows": found.quarantined,
            "not decodable": f"{found.undecoded:,} quarantined rows, which stay"
            if found.undecoded
            else None,
        }
    )
    _show_followed(found.follow)


def show_replay(found: "Replay", as_json: bool) -> None:
    if as_json:
        _print_changed(found)
        return
    console.print_facts(
        {
            "table": found.table,
            "rows replayed": found.rows,
            "hours of event time": len(found.hours),
            "waiting": f"{found.waiting:,} rows, until what reads them has closed"
            if found.waiting
            else None,
        }
    )
    if found.bad:
        most_first = sorted(found.bad.items(), key=lambda each: -each[1])
        console.print_rows(("stays quarantined", "rows"), most_first)
    _show_followed(found.follow)


def _print_changed(found: "Erasure | Replay") -> None:
    hours = {console.shown(hour): count for hour, count in found.hours.items()}
    console.print_json([asdict(found) | {"rows": found.rows, "hours": hours}])


def _show_followed(follow: "Mapping[str, Sequence[Range]]") -> None:
    ranges = [(name, range_of(span)) for name, spans in follow.items() for span in spans]
    if ranges:
        console.print_rows(("computed again", "range"), ranges)


def range_of(of: "Backfill | Certificate | Commit | Diff | Downstream | Range") -> str:
    return f"[{console.shown(of.start)}, {console.shown(of.end)})"


def brief(partitions: Sequence[str]) -> str:
    return (
        ", ".join(partitions)
        if len(partitions) <= 4
        else f"{partitions[0]} .. {partitions[-1]} ({len(partitions)})"
    )
