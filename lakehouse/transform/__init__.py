"""One plan for stream and batch: from rows of the inputs to rows of the table.

plan              the plan of a table: decode, late filter, function, expectations
headers           the headers of a record, as text
lateness          arrival, windows, what is late
ranges_of         the range of an input that a range of a table comes from, and the reverse
counting          which rows count for a keyed table at its frontier
function_inputs   inputs as functions see them
carried           columns of an input that a function of single rows left out
arrival_fields    where rows came from, and in which order
lookups           rows that a service is asked for, and rows with their answers
observing         what is counted while Spark computes
keeping           how a keyed table is kept up to date
zone_windows      the windows of a time zone that hold an instant
creation          a table made as its plan needs it
versions          the versions of each key, as-of joins
decoding          records as rows
checks            which rows are good, and where the others go
analysis          what Spark's analysed plan of a function says of it
functions         process functions and patterns: Python over the rows of a key
"""
