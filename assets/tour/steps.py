"""The steps of the tour, in their order. A docstring is what a step says first; a step returns what it has verified."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import lakehouse
from assets.tour.guide import Guide, Order
from lakehouse.cli import query
from lakehouse.declare import catalog
from lakehouse.storage.lakehouse import load
from lakehouse.storage.log.certificates import Certificate, certificates
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import supervisor

_PIPELINE = "orders"
_MANY = 20_000  # orders of an hour in which something happens
_SETTINGS = """
max_offsets_per_trigger = 4_000   # of the tour: more micro-batches, to be killed between two
heartbeat_within = "10 seconds"   # of the tour: a job without a sign of life is replaced sooner
[repair.turnover]                 # of the tour: so much may be repaired a day without being asked
partitions = 24
rows = 1000
"""
_BY_HAND = "python -c \"from deltalake import DeltaTable as T; T('.lakehouse/gold/turnover').{}\""


def events_flow(guide: Guide) -> str:
    """`lakehouse init` writes a project: three tables in orders.py, and 180 orders of yesterday. A broker and a streaming
    job start. The job keeps each order, and adds up the turnover of each shop and minute."""
    guide.run("lakehouse init .")
    with (guide.folder / "lakehouse.toml").open("a") as file:
        file.write(_SETTINGS)
    lines = (guide.folder / "orders.jsonl").read_text().splitlines()
    guide.orders = list(map(json.loads, lines))
    guide.messages = len(guide.orders)
    guide.run("tail -n 4 orders.py")
    guide.run("lakehouse broker start")
    guide.run("lakehouse topic create orders")
    guide.run("lakehouse produce --topic orders --file orders.jsonl --key shop")
    guide.parts.running["job"] = [lambda: supervisor.stop(guide.settings, _PIPELINE, now=True)]
    guide.run("lakehouse stream start orders")
    guide.wait_for_orders()
    guide.run("lakehouse table list")
    rows = guide.check_turnover()
    return f"the {rows} sums of closed minutes are those that Python makes of the orders"


def a_wrong_row(guide: Guide) -> str:
    """Two messages are wrong: an order of 0 cents, and one that is no JSON. They must neither stop the job nor be lost."""
    no_amount = guide.orders[-1] | {"order_id": "no-amount", "cents": 0}
    guide.run(guide.produce("wrong.jsonl", [], [json.dumps(no_amount), "not an order"]))
    guide.wait("the two to be read", lambda: _arrived(guide, "paid_orders") == guide.messages - 1)
    reasons = []
    for table in ("orders", "paid_orders"):
        guide.run(f"lakehouse table quarantine {table}", lines=2)
        rows = lakehouse.read(f"{table}__quarantine", settings=guide.settings).to_pylist()
        reasons += [row["reason"].partition(" ")[0] for row in rows]
    guide.check("each wrong message is quarantined once", reasons, ["not", "expectation:"])
    guide.check_turnover()
    return "both are quarantined with their reason, and no sum has changed"


def a_late_row(guide: Guide) -> str:
    """An order of 02:40 arrives when turnover is complete up to 02:58. Its minute is closed, so no sum may change.
    In plain Spark a later batch run would count it, and the two would differ."""
    late = guide.orders[160] | {"order_id": "late", "cents": 5_000}
    guide.run(guide.produce("late.jsonl", [], [json.dumps(late)]))
    guide.wait("the order to be read", lambda: _late(guide) > 0)
    guide.run("lakehouse query \"SELECT * FROM orders WHERE order_id = 'late'\"")
    guide.run("lakehouse table list")
    guide.check("rows that turnover counts as late", [_late(guide)], [1])
    guide.check_turnover()
    return "the order is stored and counted as late, and no sum has changed"


def equal(guide: Guide) -> str:
    """More orders close the hour of the late row. A reconciliation computes every closed hour again, in batch, with the
    same function, and compares."""
    guide.run(guide.produce("hour-03.jsonl", _hour(guide, 3, 600)))
    guide.wait_for_orders()
    return f"stream and batch agree on all {_reconcile(guide):,} rows, also those of the late row's hour"


def kill_9(guide: Guide) -> str:
    """A supervisor keeps the job running. 20,000 orders are sent, and the job is killed while it reads them. No order may
    be lost or counted twice."""
    guide.run("lakehouse stream supervise >supervise.log 2>&1 &")
    before, job = _arrived(guide, "orders"), _job(guide)
    guide.run(f"{guide.produce('hour-04.jsonl', _hour(guide, 4, _MANY))} &")
    guide.wait("the first of them to be read", lambda: _arrived(guide, "orders") > before)
    guide.run(f"kill -9 {job.pid}")
    read = _arrived(guide, "orders") - before
    _await_another(guide, job)
    guide.wait_for_orders()
    guide.run("lakehouse topic check orders")
    _check_messages(guide)
    guide.check_turnover()
    return f"killed after {read:,} of {_MANY:,} orders; each is stored once, and every sum is right"


def a_row_edited_by_hand(guide: Guide) -> str:
    """Somebody changes a sum in the table itself, past the library. The next reconciliation must name the row and the
    cause. It may repair 1,000 rows of turnover a day, as lakehouse.toml says."""
    began = datetime.now(UTC)
    guide.run(_BY_HAND.format("update(predicate='cents = 163', updates={'cents': '999999'})"))
    guide.run("lakehouse reconcile due turnover --repair")
    verdicts = [given for given in _verdicts(guide, began) if given.verdict == "DIFFERENT"]
    named = [
        ("999999" in given.examples[0], given.changed, given.cause.partition(":")[0])
        for given in verdicts
    ]
    guide.check("the row and the cause are named", named, [(True, 1, "rows changed by hand")])
    guide.check_turnover()
    return f"{verdicts[0].cause}; {verdicts[0].examples[0]}; repaired"


def a_backfill(guide: Guide) -> str:
    """Somebody deletes an hour of the table. A backfill computes that hour again, while 20,000 new orders stream in."""
    day, began = guide.orders[0]["at"][:10], datetime.now(UTC)
    guide.run(_BY_HAND.format(f"delete('_partition = \\'{day}-01\\'')"))
    sent = guide.produce("hour-05.jsonl", _hour(guide, 5, _MANY))
    guide.run(f"{sent} & lakehouse backfill turnover --start {day}T01:00 --end {day}T02:00")
    ended = datetime.now(UTC)
    guide.wait_for_orders()
    meanwhile = sum(c.arrived for c in guide.commits("orders") if began < c.at < ended)
    guide.check("the stream reads on meanwhile", [meanwhile > 0], [True])
    guide.check_turnover()
    sql = f"SELECT DISTINCT _origin FROM turnover WHERE _partition = '{day}-01'"
    written_by = query.run(load(guide.settings), sql).rows
    guide.check("the writers of the hour", written_by, [("batch",)])
    return f"the hour is back, and the stream read {meanwhile:,} orders meanwhile"


def a_change(guide: Guide) -> str:
    """Turnover is to be that of five minutes. The changed table is filled beside the present one, and the two are
    compared. It takes its place in one commit, new orders come, and the change is taken back."""
    guide.run("""sed -i.before 's/"1 minute"/"5 minutes"/' orders.py""")
    guide.run("lakehouse plan", exit_code=1)
    guide.run("lakehouse upgrade fill turnover")
    guide.check_turnover("turnover__beside", minutes=5)
    guide.run("lakehouse upgrade promote turnover")
    guide.run(guide.produce("hour-06.jsonl", _hour(guide, 6, 600)))
    guide.wait_for_orders()
    promoted = guide.check_turnover(minutes=5)
    guide.run("mv orders.py.before orders.py && lakehouse upgrade roll-back turnover")
    guide.wait_for_orders()
    rows = guide.check_turnover()
    return f"{promoted:,} right sums while it was promoted, and {rows:,} after the roll-back, new orders included"


def another_process(guide: Guide) -> str:
    """A second process beside the first is refused. Then the first is frozen: it lives, and does nothing. After 10 seconds
    without a sign of life another takes over. In the end all is reconciled once more."""
    job = _job(guide)
    guide.run("lakehouse stream run orders", exit_code=2)
    guide.run(f"kill -STOP {job.pid}")
    guide.run(guide.produce("hour-07.jsonl", _hour(guide, 7, _MANY)))
    _await_another(guide, job)
    guide.wait_for_orders()
    _check_messages(guide)
    return f"the other process read on; each order is stored once, and all {_reconcile(guide):,} rows are EQUAL"


STEPS: dict[str, Callable[[Guide], str]] = {
    "Events flow": events_flow,
    "A wrong row": a_wrong_row,
    "A late row": a_late_row,
    "EQUAL": equal,
    "kill -9, and it heals": kill_9,
    "A row edited by hand": a_row_edited_by_hand,
    "A backfill beside the stream": a_backfill,
    "A change: planned, compared, promoted, rolled back": a_change,
    "A second process takes over": another_process,
}


def _hour(guide: Guide, hour: int, many: int) -> list[Order]:
    """Returns so many orders, evenly over an hour."""
    start = f"{guide.orders[0]['at'][:10]}T{hour:02}"
    seconds = (n * 3600 // many for n in range(many))
    times = (f"{start}:{second // 60:02}:{second % 60:02}Z" for second in seconds)
    return [
        {"order_id": f"{hour}-{n}", "shop": "abc"[n % 3], "at": at, "cents": 1 + n % 500}
        for n, at in enumerate(times)
    ]


def _arrived(guide: Guide, table: str) -> int:
    return sum(commit.arrived for commit in guide.commits(table))


def _late(guide: Guide) -> int:
    return sum(commit.late for commit in guide.commits("turnover"))


def _job(guide: Guide) -> JobStatus:
    """Returns the status of the job, which has run."""
    status = supervisor.status(guide.settings, _PIPELINE)
    assert status is not None
    return status


def _verdicts(guide: Guide, since: datetime) -> list[Certificate]:
    table = catalog.load(guide.settings).table("turnover")
    return [given for given in certificates(guide.settings, table) if given.at >= since]


def _reconcile(guide: Guide) -> int:
    """Reconciles turnover, checks that each row is EQUAL, and returns the number of rows."""
    began = datetime.now(UTC)
    guide.run("lakehouse reconcile run turnover")
    rows = guide.check_turnover()
    compared = Counter[str]()
    for given in _verdicts(guide, began):
        compared[given.verdict] += given.rows_recomputed
    guide.check("rows by verdict", compared.items(), [("EQUAL", rows)])
    return rows


def _await_another(guide: Guide, before: JobStatus) -> None:
    """Waits for another process at work, and shows why it was started."""

    def at_work() -> bool:
        job = _job(guide)
        return job.pid != before.pid and job.state == "running"

    guide.wait("the supervisor to have another process at work", at_work)
    guide.run("tail -n 1 supervise.log")


def _check_messages(guide: Guide) -> None:
    """Compares the places of all stored messages with those of the topic."""
    sides = (
        "SELECT _arrival['offset'] FROM orders",
        "SELECT _arrival['offset'] FROM orders__quarantine",
    )
    stored = query.run(load(guide.settings), " UNION ALL ".join(sides)).rows
    guide.check("each message is stored once", (row[0] for row in stored), range(guide.messages))
