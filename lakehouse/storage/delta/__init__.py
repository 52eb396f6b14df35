"""Delta tables: their logs, how they are read, written and cleaned up.

delta_log              which files a table has, and what changed them, by its log alone
recent_commits         commit files of an object store, each asked for once
log_state              the same at the newest version, with deletion vectors
delta_tables           rows and columns of tables, without a JVM
table_creation         the creation of tables
housekeeping           fewer files and fewer versions of a table
delta_stream           rows added to a Delta table, as a streaming query of Spark's reads them
committer              the one function that commits
delta_writer           exactly-once appends, replacements of ranges, tables replaced whole
small_commits          commits without a Spark job
small_files            small files of a partition, merged while the stream goes on
write_cache            rows that this process has just written, kept in memory
arrow                  rows between Spark and this process
version_rows           the rows that a version removed and added
row_keys               the technical column `_key`
json_texts             nested values as JSON, with instants whole
deletion_vectors       the dead rows of a data file, as Delta has them on disk
deletion_vector_files  files of deletion vectors that no version needs
digest                 checksums of sets of rows, and their differences
python_years           instants and dates that Python has, and errors that name a row with others
"""
