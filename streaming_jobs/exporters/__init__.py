"""Metrics, lineage, notifications and rows that leave a job.

metrics          jobs and tables as OpenMetrics
metric_families  these metrics, declared
lineage          commits and their inputs as OpenLineage
notifications    notices of the failures of jobs, each sent once
follower         publishes a table to one target
"""
