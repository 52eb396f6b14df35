"""What is kept below the root, and how it is read and written.

lakehouse             `Lakehouse`: settings and catalog, without a JVM
session               `Session`: a lakehouse and Spark, how rows are read
disk                  small files below the root: where they lie, how they are read, replaced and locked
delta                 Delta tables: their logs, how they are read, written and cleaned up
keyed                 rows by key: the files of keyed tables, and the indexes by which rows are found
log                   what is recorded of each write, of each reconciliation and of each publication
position              where a table stands: its checkpoint, its declaration, what it has read
versions              several versions of a lakehouse: savepoints, forks, upgrades
foreign               folders and tables that others write: what has come, and how it is read
"""
