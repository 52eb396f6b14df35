"""The records of each write, of each reconciliation and of each publication.

published_position   the version up to which a table was published
action_log           the outcome of each action of a target, and its position, in one file
commits              what is known about a write: its record, and its line
commit_log           the commits of a table, and the frontier
commit_cache         the cache of the commits: read again, read on, trimmed
table_content        the rows of each partition, and which data files are missing
latest_times         how far the rows of a commit had come in event time
log_tables           commit logs and verdicts in Delta, for queries
certificates         the recorded verdicts
reconcile_attempts   the beginning of a reconciliation, and why it failed
report_files         the files that are drawn of a report's partitions
comparisons          comparisons of a table with the version beside it
"""
