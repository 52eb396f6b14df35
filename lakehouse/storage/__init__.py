"""What is kept below the root, and how it is written.

    small_commits      rows of a short step, written and committed without a Spark job
    keyed_files        tables with a row, or versions, for each key: a step writes what it changes
    key_index          where the rows of each key are, in memory
    point_reads        the rows of one key, without a scan
    row_keys           the technical column `_key`
    deletion_vectors   which rows of a data file are dead, as Delta has it on disk
    vectors            which files of deletion vectors are nobody's any more
    log_state          what a Delta log says of a table now
"""
