"""The output of the commands of batch jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from lakehouse.cli import console
from lakehouse.ranges import brief
from lakehouse.storage.log.commits import NOTHING

if TYPE_CHECKING:
    from batch_jobs.diff import Diff
    from batch_jobs.planning import Backfill, Downstream
    from lakehouse.batch.batch_state import Dirt
    from lakehouse.maintenance.erasure import Erasure
    from lakehouse.maintenance.replay_quarantine import Replay
    from lakehouse.maintenance.retention import Maintenance
    from lakehouse.ranges import Range
    from lakehouse.storage.log.certificates import Certificate
    from lakehouse.storage.log.commits import Commit
    from lakehouse.storage.position.handovers import Handover


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
                "not computed": brief(planned.unchanged) if planned.unchanged else None,
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
    """Prints that a keyed or versioned table is, or would be, computed again by its own job."""
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
    """Prints what became of each table's partitions, and which partitions of other tables wait for a batch run now."""
    done = planned.done if planned else ()
    if as_json:
        console.print_json({"outcome": outcome(c), **asdict(c)} for c in commits)
        console.print_json({"outcome": "done before", "table": table, "partition": p} for p in done)
        console.print_json([] if commits or done else [{"outcome": "unchanged", "table": table}])
        return
    if planned is None:
        outcome_of = "was rebuilt" if commits else "has these rows already; nothing was written"
        console.print_text(f"{table} {outcome_of}")
        return
    rows = []
    for name in dict.fromkeys([table, *(c.table for c in commits)]):
        mine = [c for c in commits if c.table == name]
        rewritten = [c for c in mine if outcome(c) == "rewritten"]
        span = planned if name == table else replace(mine[0], end=mine[-1].end)
        rows.append(
            {
                "table": name,
                "range": range_of(span),
                "rewritten": len(rewritten),
                "unchanged": len(mine) - len(rewritten),
                "done before": len(done) if name == table else 0,
                "rows written": sum(c.written for c in rewritten),
                "quarantined": sum(c.quarantined for c in mine),
                "seconds": f"{sum(c.seconds for c in mine):.1f}",
            }
        )
    console.print_records(rows)
    for name, partitions in pending.items():
        console.print_text(
            f"{name} is PENDING in {brief(partitions)}: follow by `--cascade`, or by a backfill of its own"
        )


def show_handover(
    handover: "Handover", planned: "Backfill | None", commits: "Sequence[Commit]", as_json: bool
) -> None:
    """Prints where the stream begins, and what was computed before the handover."""
    if as_json:
        console.print_json([handover])
    else:
        console.print_facts(
            {
                "handover": handover.frontier,
                "stream from": f"version {handover.version} of {handover.input}, "
                f"complete up to the handover at version {handover.until}",
                "read by then": handover.inputs,
            }
        )
    if planned:
        show_backfill(planned.table, planned, commits, {}, as_json)


def outcome(commit: "Commit") -> str:
    return "unchanged" if commit.version == NOTHING else "rewritten"


def show_waiting(waiting: "dict[str, list[Dirt]]", as_json: bool) -> None:
    rows = [{"table": name, **asdict(d)} for name, dirt in waiting.items() for d in dirt]
    if as_json:
        console.print_json(rows)
        return
    if rows:
        console.print_columns(
            rows,
            {
                "table": lambda r: r["table"],
                "partition": lambda r: r["partition"],
                "is": lambda r: "closed" if r["closed"] else "open: waits until it closes",
                "because of": lambda r: "late rows" if r["since"] else "input rewritten",
            },
        )
    else:
        console.print_text("no late row waits to be merged")
    console.print_note("nothing was changed")


def show_updates(commits: "list[Commit]", as_json: bool) -> None:
    if as_json:
        console.print_json(commits)
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


def show_maintenance(maintained: "list[Maintenance]", as_json: bool) -> None:
    if as_json:
        console.print_json(maintained)
        return
    console.print_columns(
        maintained,
        {
            "table": lambda u: u.table,
            "partitions": lambda u: len(u.partitions),
            "small files": lambda u: u.files,
            "kept from version": lambda u: u.oldest,
            "held by": lambda u: u.held_by or None,
            "older commits": lambda u: u.commits,
            "obsolete files": lambda u: u.obsolete,
        },
    )


def show_erasure(erasure: "Erasure", as_json: bool) -> None:
    if as_json:
        _print_changed(erasure)
        return
    console.print_facts(
        {
            "table": erasure.table,
            "rows": erasure.rows,
            "hours of event time": len(erasure.hours),
            "quarantined rows": erasure.quarantined,
            "not decodable": f"{erasure.undecoded:,} quarantined rows, which stay"
            if erasure.undecoded
            else None,
        }
    )
    _show_followed(erasure.follow)


def show_replay(replay: "Replay", as_json: bool) -> None:
    if as_json:
        _print_changed(replay)
        return
    console.print_facts(
        {
            "table": replay.table,
            "rows replayed": replay.rows,
            "hours of event time": len(replay.hours),
            "waiting": f"{replay.waiting:,} rows, until what reads them has closed"
            if replay.waiting
            else None,
        }
    )
    if replay.bad:
        most_first = sorted(replay.bad.items(), key=lambda each: -each[1])
        console.print_rows(("stays quarantined", "rows"), most_first)
    _show_followed(replay.follow)


def _print_changed(outcome: "Erasure | Replay") -> None:
    hours = {console.shown(hour): count for hour, count in outcome.hours.items()}
    console.print_json([asdict(outcome) | {"rows": outcome.rows, "hours": hours}])


def _show_followed(follow: "Mapping[str, Sequence[Range]]") -> None:
    ranges = [(name, range_of(span)) for name, spans in follow.items() for span in spans]
    if ranges:
        console.print_rows(("computed again", "range"), ranges)


def range_of(of: "Backfill | Certificate | Commit | Diff | Downstream | Range") -> str:
    return f"[{console.shown(of.start)}, {console.shown(of.end)})"
