"""The commands on topics, savepoints, targets and upgrades.

topic_commands      what ingest tables read
savepoint_commands  savepoints: created, verified, restored, forked
publish_commands    targets and their followers
upgrade_commands    a table and the version beside it
exporter_commands   metrics and lineage
views               jobs for a terminal
"""
