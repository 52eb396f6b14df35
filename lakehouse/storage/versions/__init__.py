"""Several versions of a lakehouse: savepoints, forks, upgrades.

read_holds        runs that read what is on disk now
savepoints        all tables at one consistent cut, kept by links
savepoint_checks  checks of a savepoint that somebody else made
restoring         a savepoint restored, forked, or moved as one file
fork_guard        the note that a lakehouse is a fork, and the targets of the other one
interruptions     checks for a restore or promotion that was cut off
upgrades          the other version of a table, beside it, and the exchange of the two
"""
