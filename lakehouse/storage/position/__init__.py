"""Where a table stands: its checkpoint, its declaration, what it has read.

reference_versions  which versions of refreshed reference tables rows see, by their arrival
handovers           where batch ends and the stream begins
declared_changes    a change of a declaration, and what it means for the rows that are there
declared_state      what a stream was begun with, and that it goes on as nothing else
checkpoints         where a table stands, and whether a checkpoint fits that
checkpoint_files    what Spark keeps in a checkpoint
checkpoint_content  whether Spark can read it
state_partitions    into how many partitions the state of a query of Spark's is divided
schemas             schemas of a registry that an ingest table's messages have had
"""
