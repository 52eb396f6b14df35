"""The position of a table: its checkpoint, its declaration, and the inputs that it has read.

reference_versions  the versions of refreshed reference tables that rows see, by their arrival
handovers           the instant at which batch ends and the stream begins
declared_changes    a change of a declaration, and its effect on the rows that are there
table_state         a table's state, read once at a start and handed down
declared_state      the declaration that a stream started with, and refusals of an incompatible one
checkpoints         a table's position, and the check that a checkpoint fits it
checkpoint_files    the files that Spark keeps in a checkpoint
checkpoint_content  checks that Spark can read them
state_partitions    the number of partitions of the state of a query of Spark's
schemas             schemas of a registry that an ingest table's messages have had
"""
