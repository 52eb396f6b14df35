"""Stream and batch compared, range by range.

reconciliation   the batch run of a closed range against the table
keyed_tables     the same of a keyed or versioned table, which is computed whole
coverage         how much is reconciled, and what is due
invalidation     which reconciled partitions were changed since
diagnosis        why a table differs
provenance       who wrote the rows of a partition
verdicts         the certificates in sum
"""
