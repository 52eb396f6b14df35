"""Tables published to targets, version by version, without a JVM.

The contract is `lakehouse.declare.targets`.

changes       which rows a version adds, changes and removes
column_check  whether a target can hold the columns of a table
follower      brings a target from its position to the newest version
claims        the same for all targets: positions, processes that are replaced, errors of servers, variables
comparison    what a target holds, compared with the table
actions       targets that act on rows: what all of them share
trial         the test kit of a sink of one's own
mortal        what happens in its processes
formats       rows as texts and bytes of targets
targets       the targets that the library brings, each with what belongs to it alone
"""
