"""One plan for stream and batch: from rows of the inputs to rows of the table.

plan              the plan of a table: decode, late filter, function, expectations
lateness          arrival, windows, lateness
ranges_of         the range of an input that a range of a table comes from, and the reverse
counting          the rows that count for a keyed table at its frontier
function_inputs   the inputs of a table as its function sees them, and columns that the function left out
arrival_fields    the origin of rows, and their order there
lookups           rows that a service is asked for, and rows with their answers
observing         counts that Spark takes while it computes
keeping           the ways to keep a keyed table up to date
creation          a table made as its plan needs it
versions          the versions of each key, as-of joins
decoding          records as rows
checks            checks of rows: good ones, and those of the quarantine
analysis          analysis of a function by Spark's plan of it
functions         process functions and patterns: Python over the rows of a key
"""
