"""What is kept below the root, and how it is read and written.

layout                where everything lies below the root
root                  the root itself
files                 small files: lines that are added, values that are replaced as a whole
text_logs             logs of text, and those before
locks                 what one process at a time has
publish_lock          which process rewrites a table, and which reconciles what is due of it
delta_log             which files a table has, and what changed them, by its log alone
log_state             the same at the newest version, with deletion vectors
delta_tables          rows and columns of tables, without a JVM
table_creation        tables are made
housekeeping          fewer files and fewer versions of a table
lakehouse             `Lakehouse`: settings and catalog, without a JVM
session               `Session`: a lakehouse and Spark, how rows are read
streams               a Delta table as a streaming query of Spark's reads it
delta_writer          exactly-once appends, replacements of ranges, tables replaced whole
small_commits         commits without a Spark job
recent                what this process has just written, kept in memory
arrow                 rows between Spark and this process
keyed_files           tables with a row, or versions, for each key: a step writes what it changes
answers               what services answered, beside the table that asked
row_index             rows of a table without keys by the values of some columns
instants              rows of data files by an instant that they have
keyed_reader          such a table as another reads it: what came and went, and the rows of some keys
key_index             where the rows of each key are
point_reads           the rows of one key, without a scan
version_rows          the rows that a version took away and brought
published             up to which version a table was published
action_log            what came of each action of a target, and its position, in one file
row_keys              the technical column `_key`
json_texts            nested values as JSON, with instants whole
typed_values          values of dataclasses of what a file held
deletion_vectors      which rows of a data file are dead, as Delta has it on disk
vectors               which files of deletion vectors no version needs
state_files           the states that a process function keeps
digest                checksums of sets of rows, and their differences
commits               one line of what is known about a write
commit_log            the commit log of a table, and the frontier
commit_log_trimming   commit logs do not grow without end
commit_log_repair     a commit log that was cut or removed is made whole
commit_log_rebuild    its lines made again from the table's log
latest_times          how far the rows of a commit had come in event time
log_tables            commit logs and verdicts in Delta, for queries
certificates          the recorded verdicts
attempts              that a reconciliation began, and why it failed
reference_versions    which versions of refreshed reference tables rows see, by their arrival
handovers             where batch ends and the stream begins
report_files          the files that are drawn of a report's partitions
declared_changes      a change of a declaration, and what it means for the rows that are there
begun_with            what a stream was begun with, and that it goes on as nothing else
checkpoints           where a table stands, and whether a checkpoint fits that
checkpoint_files      what Spark keeps in a checkpoint
checkpoint_content    whether Spark can read it
state_partitions      into how many partitions the state of a query of Spark's is divided
read_holds            runs that read what is on disk now
schemas               schemas of a registry that an ingest table's messages have had
file_register         the files that an ingest table reads, and the numbers of their records
foreign_sources       folders and tables of others: what has come is registered
foreign_files         what such files hold
foreign_changes       what others do to the history of a topic after it was read
foreign_log           the log of a Delta table of others
iceberg_tables        Iceberg tables of others: their snapshots and files
iceberg_columns       their columns, by field ids
iceberg_rows          the rows of a file of such a table
iceberg_feed          what has come to such a table is registered
foreign_records       the records of registered files
savepoints            all tables at one consistent cut, kept by links
savepoint_checks      what a savepoint of somebody else may say and hold
restoring             a savepoint restored, forked, or moved as one file
forks                 whether a lakehouse is a fork, and where the other one publishes
cut_off               whether a restore was cut off
upgrades              the other version of a table, beside it, and the exchange of the two
python_years          instants and dates that Python has, and rows with others named
comparisons           what was compared of the two
full_disk             a disk that is full under a command is named
"""
