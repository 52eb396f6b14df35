"""One plan for stream and batch: from rows of the inputs to rows of the table.

plan              the plan of a table: decode, late filter, function, expectations
decode            records as rows
headers           the headers of a record, as text
values            texts as values of declared types, exactly or not at all
reference_files   files of reference data as rows
schemas           schemas of a registry: which ids values name, what of them is readable
keys              the key of a record, as text
protobuf          values of Protobuf as columns
changes           change events of Debezium as rows
change_feed       changes of a Delta table of others as rows
record_columns    what of a decoded record is kept
lateness          arrival, windows, what is late
ranges_of         the range of an input that a range of a table comes from, and the reverse
counting          which rows count for a keyed table at its frontier
years             instants and dates that Python has not
quality           expectations as columns, and as a suite
compiled_rules    rules that were compiled before, kept as SQL
expectation_stub  the expectations that are installed, written down for `declare`
function_inputs   inputs as functions see them
carried           columns of an input that a function of single rows left out
arrival_fields    where rows came from, and in which order
judged_rows       good rows, and those of the quarantine
lookups           rows that a service is asked for, and rows with their answers
observing         what is counted while Spark computes
determinism       what two runs of a function may differ by
clocks            what of a function reads a clock, also as it reads texts
total_order       places of rows that others may share
shapes            what kind of operators a function is made of
origins           which columns of the inputs each column of a plan is equal to
equal_columns     what equality of columns says: spans and their ends, truncated instants
window_rule       whether each row of a window table is made of rows of one window
groups            by which columns rows of a result belong to rows of its inputs
keeping           how a keyed table is kept up to date
plan_tree         Spark's plan of a function, node by node
zone_windows      the windows of a time zone that hold an instant
returned          what a function returned, held against its kind of table
validation        all of that on no rows, before anything is made
creation          a table made as its plan needs it
versions          the versions of each key, as-of joins
process           process functions: state and timers
lives             the life of one key: rows in event time, timers between them
lasting           a process function over a range: kept states in, rows and states out
plain_values      a state as text, and back
patterns          patterns over the rows of a key
pattern_steps     which row each step of a pattern takes, how often, and what must not come
automaton         which rows make a match
"""
