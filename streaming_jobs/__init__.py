"""Long-running streaming jobs: a process each, which describes itself in files that others read.

driver          the process of a pipeline's job
process         what jobs and followers have in common: lease, status, exit code
queries         one streaming query in it: started, paused, observed
references      its reference tables: filled at the start, refreshed while it runs
previews        the early results of its tables
progress        what it says of itself in files
progress_log    what it says in its log
commands        the commands `lakehouse stream`
supervision     jobs started, watched, healed and stopped
board           the page `lakehouse board`
exporters       what leaves a job: metrics, lineage, notifications, rows to targets
command_groups  the commands on topics, savepoints, targets and upgrades
"""
