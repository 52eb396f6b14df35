"""One plan for stream and batch: from rows of the inputs to rows of the table.

plan              the plan of a table: decode, late filter, function, expectations
decode            records of a topic, and files, as rows
lateness          arrival, windows, what is late
quality           expectations as columns, and as a suite
expectation_stub  the expectations that are installed, written down for `declare`
judged_rows       good rows, and those of the quarantine
observing         what is counted while Spark computes
determinism       what two runs of a function may differ by
returned          what a function returned, held against its kind of table
validation        all of that on no rows, before anything is made
creation          a table made as its plan needs it
versions          the versions of each key, as-of joins
process           process functions: state and timers
patterns          patterns over the rows of a key
"""
