"""Analysis of a function by Spark's plan of it.

determinism    expressions and operators by which two runs may differ
clocks         expressions that read a clock, also as they read texts
total_order    places of rows that others may share
shapes         the kinds of operators that a function is made of
origins        the input columns that each column of a plan is equal to
equal_columns  equality of columns, of spans and their ends, and of truncated instants
window_rule    the rule that each row of a window table is made of rows of one window
groups         columns by which rows of a result belong to rows of its inputs
plan_tree      Spark's plan of a function, node by node
result_checks  checks of a function's result against its kind of table
validation     all of these checks on no rows, before anything is made
"""
