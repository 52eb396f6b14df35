"""Sources in steps: which records a step reads.

source_steps   the steps of an ingest table: ranges of offsets
topic_steps    those of one that reads topics
file_steps     those of one that reads a folder, or a table of others
own_steps      those of one that reads a source of one's own
history_steps  those of one whose topic has a history: that first
topic_starts   where such a topic begins, and whether its history is read
records        raw records from offsets to offsets
raw_records    what a step reads, to be judged
topic_reader   messages as the broker hands them out
readings       how often Debezium has read a database's table whole
offset_ranges  ranges of offsets, shared out
offsets        offsets join on from commit to commit
topic_check    whether each message is there once
"""
