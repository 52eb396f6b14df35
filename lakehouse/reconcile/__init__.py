"""Stream and batch compared, range by range.

reconciliation   the batch run of a closed range against the table
keyed_tables     the same of a keyed or versioned table, which is computed whole
coverage         the reconciled share of a table, and the partitions that are due
invalidation     reconciled partitions that were changed since
unchanged        reconciled partitions that a batch run would leave as they are
diagnosis        the cause why a table differs
provenance       the writers of a partition's rows
verdicts         the certificates in sum
"""
