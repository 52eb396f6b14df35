"""What is recorded of each write, of each reconciliation and of each publication.

published_position   up to which version a table was published
action_log           what came of each action of a target, and its position, in one file
commits              what is known of a write: its record, and its line
commit_log           the commits of a table, and the frontier
commit_cache         the cache of these: read again, read on, trimmed
latest_times         how far the rows of a commit had come in event time
log_tables           commit logs and verdicts in Delta, for queries
certificates         the recorded verdicts
reconcile_attempts   that a reconciliation began, and why it failed
report_files         the files that are drawn of a report's partitions
comparisons          what was compared of the two
"""
