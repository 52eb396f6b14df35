"""Tables published to targets, version by version, without a JVM.

The contract is `lakehouse.declare.targets`.

base        the same for all targets: positions, takeovers, errors of servers, variables, columns that can be held
changes     which rows a version adds, changes and removes
follower    brings a target from its position to the newest version
comparison  what a target holds, compared with the table
actions     targets that act on rows: what all of them share
trial       the test kit of a sink of one's own
mortal      what happens in its processes
formats     rows as texts and bytes of targets
targets     the targets that the library brings, each with what belongs to it alone
"""
