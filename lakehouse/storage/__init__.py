"""Files and tables below the root, and the code that reads and writes them.

lakehouse             `Lakehouse`: settings and catalog, without a JVM
session               `Session`: a lakehouse and Spark, how rows are read
disk                  small files below the root: where they lie, how they are read, replaced and locked
delta                 Delta tables: their logs, how they are read, written and cleaned up
keyed                 rows by key: the files of keyed tables, and the indexes by which rows are found
log                   records of each write, each reconciliation and each publication
position              the position of a table: its checkpoint, its declaration, what it has read
versions              several versions of a lakehouse: savepoints, forks, upgrades
foreign               folders and tables that others write: what has arrived, and how it is read
"""
