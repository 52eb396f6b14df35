"""The engines that fill tables step by step.

table_steps       the steps of a table downstream of another: commits of its input
ingest            micro-batches of sources, and the watermark
append            a row table: its function over the rows that came
close             ranges as they close, by the batch function
keyed             a row, or versions, for each key
groups            a keyed table of joins, ranks, aggregates of aggregates: what belongs to what changed, computed again
group_reads       what such a step reads of its inputs
group_writes      how such a step writes the rows that it computed
sums              sums and counts over a keyed table, by what came and what went of it
counted_rows      the rows of its inputs that count by time: until they expire, or once they are final
early_results     windows before they are complete
"""
