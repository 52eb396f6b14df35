"""Several versions of a lakehouse: savepoints, forks, upgrades.

read_holds        runs that read what is on disk now
savepoints        all tables at one consistent cut, kept by links
savepoint_checks  what a savepoint of somebody else may say and hold
restoring         a savepoint restored, forked, or moved as one file
fork_guard        whether a lakehouse is a fork, and where the other one publishes
interruptions     whether a restore was cut off
upgrades          the other version of a table, beside it, and the exchange of the two
"""
