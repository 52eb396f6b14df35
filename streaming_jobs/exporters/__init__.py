"""What leaves a job: metrics, lineage, notifications, rows to targets.

metrics          what is written of jobs and tables, as OpenMetrics
metric_families  these metrics, declared
results          what tables show of their results
lineage          what was computed from what, as OpenLineage
notifications    what went wrong, sent once
follower         publishes a table to one target
"""
