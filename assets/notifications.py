"""The sensor that sends notifications: failed jobs, verdicts DIFFERENT, stale tables."""

from collections.abc import Iterator

import dagster as dg

from assets import staleness
from lakehouse.declare.catalog import Catalog
from lakehouse.reconcile.verdicts import Verdicts
from lakehouse.settings import Settings
from streaming_jobs.exporters import notifications
from streaming_jobs.exporters.notifications import Notice
from streaming_jobs.supervision import notices
from streaming_jobs.supervision.jobs import with_followers


def send_notifications(settings: Settings, catalog: Catalog) -> dg.SensorDefinition:
    """Has no cursor: what was sent is kept beside the tables, because `lakehouse stream supervise` may send, too."""
    verdicts = Verdicts(settings)

    @dg.sensor(
        name="send_notifications",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends notifications of what went wrong to LAKEHOUSE_NOTIFICATION_COMMAND and "
        "LAKEHOUSE_NOTIFICATION_URLS, each once.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        if not notifications.wanted(settings):
            return dg.SkipReason(
                "no notifications: neither LAKEHOUSE_NOTIFICATION_COMMAND nor LAKEHOUSE_NOTIFICATION_URLS is set"
            )
        all_notices = [
            n
            for job in with_followers(catalog, catalog.pipelines())
            for n in notices.of_job(settings, job)
        ]
        all_notices += [
            *_different(catalog, verdicts),
            *staleness.stale(settings, catalog, context.instance),
        ]
        failures = notifications.send(settings, all_notices)
        for failure in failures:
            context.log.warning(failure)
        return dg.SkipReason("; ".join(failures) or "every notification is sent")

    return evaluate


def _different(catalog: Catalog, verdicts: Verdicts) -> Iterator[Notice]:
    for name, outcomes in verdicts.now().items():
        table = catalog.tables.get(name)
        if table is None:
            continue
        for (start, end), found in outcomes.different.items():
            yield Notice(
                "verdict_different",
                table.pipeline,
                found.rows,
                found.at,
                name,
                start,
                end,
            )
