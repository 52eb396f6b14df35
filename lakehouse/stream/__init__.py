"""The stream: how the tables of a pipeline are filled as their inputs grow.

    strategy     which engine a table has: Spark's own streaming query, or steps of our own
    positions    how far a table has read its input, and what comes next: files, commit by commit
    advance      the query of a table that needs no state of Spark's: one bounded step after another
"""
