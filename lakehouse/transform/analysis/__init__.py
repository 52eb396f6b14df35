"""What Spark's analysed plan of a function says of it.

determinism    what two runs of a function may differ by
clocks         what of a function reads a clock, also as it reads texts
total_order    places of rows that others may share
shapes         what kind of operators a function is made of
origins        which columns of the inputs each column of a plan is equal to
equal_columns  what equality of columns says: spans and their ends, truncated instants
window_rule    whether each row of a window table is made of rows of one window
groups         by which columns rows of a result belong to rows of its inputs
plan_tree      Spark's plan of a function, node by node
result_checks  what a function returned, held against its kind of table
validation     all of that on no rows, before anything is made
"""
