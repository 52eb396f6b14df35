"""Sources in steps: which records a step reads.

contract        what the steps of an ingest table ask of its sources
registry        the classes that read each kind of source, and check it
topics          topics
files           a folder, or a table of others
own             a source of one's own
history         a topic after its history
source_input    the input of an ingest table's step loop
topic_starts    where a topic with a history begins, and whether its history is read
topic_reader    messages as the broker hands them out
checked         the comparison of a table with its sources, which commands ask for
records         records in memory
raw_records     the records of a step, to be judged
readings        how often Debezium has read a database's table whole
offset_ranges   ranges of offsets, and the same share of each
offsets         offsets, which continue from commit to commit
"""
