"""Declarations of a user, as values: no session, no broker, nothing on disk.

kinds              the kinds of tables: what each has, and how it is filled
table              a declared table: the one concept, and the call of its function
decorators         a decorator for each kind of table
queries            `sql`: a query as the function of a table
targets            targets that tables are published to, and the contract of what writes there
windows            windows, the clocks of their time zones, intervals, the horizon of duplicates
secrets            values of the environment that a function uses, written nowhere
lookups            questions to a service outside, one for each row
reports            the file that is drawn of each partition of a report
expectations       the rules that a table's rows must keep
expectation_names  the arguments of each expectation, without importing Great Expectations
catalog            the graph of all tables, checked, in order
modules            the modules that the settings name, imported
option_rules       the rules of single options
remarks            every fault of a declaration in one error
rules              refusals and warnings that follow from the declarations alone
code_version       the code that a function runs, by which a change is noticed
columns            names of the columns that the library adds, and those of Spark DDL
inputs             the sources of tables
"""
