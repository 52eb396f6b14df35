"""Long-running streaming jobs: a process each, which describes itself in files that others read.

supervision   jobs started, watched, healed and stopped
exporters     what leaves a job: metrics, lineage, notifications, rows to targets
command_groups  the commands on streams, topics, savepoints, targets and upgrades
"""
