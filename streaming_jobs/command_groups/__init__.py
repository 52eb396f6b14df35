"""The commands on streams, topics, savepoints, targets and upgrades."""
