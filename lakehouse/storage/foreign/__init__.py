"""Folders and tables that others write: what has come, and how it is read.

file_register     the files that an ingest table reads, and the numbers of their records
foreign_contract  what a folder or a table of others answers
foreign_folder    the answers of a folder
foreign_delta     the answers of a Delta table of others
foreign_iceberg   the answers of an Iceberg table of others
foreign_sources   which of them has the files of a source
foreign_records   the records of registered files
foreign_files     what such files hold
foreign_log       the log of a Delta table of others
iceberg_tables    Iceberg tables of others: their snapshots and files
iceberg_columns   their columns, by field ids
"""
