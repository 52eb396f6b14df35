"""Folders and tables that others write: what has come, and how it is read.

file_register    the files that an ingest table reads, and the numbers of their records
foreign_sources  folders and tables of others: what has come is registered
foreign_files    what such files hold
foreign_changes  what others do to the history of a topic after it was read
foreign_log      the log of a Delta table of others
iceberg_tables   Iceberg tables of others: their snapshots and files
iceberg_columns  their columns, by field ids
iceberg_rows     the rows of a file of such a table
iceberg_feed     what has come to such a table is registered
foreign_records  the records of registered files
"""
