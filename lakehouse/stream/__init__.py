"""The stream: how the tables of a pipeline are filled as their inputs grow. It stands on `batch`.

strategy        which engine a table has: Spark's own streaming query, or steps of our own
queries         the query of a table, by kind
input_frontier  how far the input is complete, handed on to queries of Spark's also without a row
micro_batch     how one micro-batch or step is written: exactly once
advance         one limited step after another
source_steps    the steps of an ingest table: ranges of offsets
topic_steps     those of one that reads topics
file_steps      those of one that reads a folder, or a table of others
own_steps       those of one that reads a source of one's own
history_steps   those of one whose topic has a history: that first
topic_starts    where such a topic begins, and whether its history is read
records         raw records from offsets to offsets
topic_reader    messages as the broker hands them out
table_steps     the steps of a table behind another: commits of its input
positions       how far a table has read its input
news            who has committed
ingest          micro-batches of sources, and the watermark
readings        how often Debezium has read a database's table whole
spans           ranges of offsets, shared out
offsets         offsets join on from commit to commit
topic_check     whether each message is there once
keyed           a row, or versions, for each key
consistent      versions of several inputs that have read the same of what they share
groups          a keyed table of joins, ranks, aggregates of aggregates: what belongs to what changed, computed again
group_writes    how such a step writes the rows that it computed
sums            sums and counts over a keyed table, by what came and what went of it
counted_rows    the rows of its inputs that count by time: until they expire, or once they are final
refreshed_inputs  what the rows of a step see of refreshed reference tables
early_results   windows before they are complete
handover        where a new table's batch run ends and its stream begins
generations     where a query begins again
beside          the stream of a table's other version, which is beside it
rescaling       the state of Spark's queries divided again, while their job is stopped
lag             how far a stream is behind
waiting         why a table waits or has no rows, in a line
pauses          for how long a stream may rest
state_reader    the state of Spark's queries, by key
"""
