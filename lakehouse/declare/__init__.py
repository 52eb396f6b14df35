"""What a user declares, as values: no session, no broker, nothing on disk.

kinds              the kinds of tables: what each has, and how it is filled
table              a declared table: the one concept
decorators         a decorator for each kind of table
queries            `sql`: a query as the function of a table
calling            which table's function is being called
targets            where tables are published, and the contract of what writes there
windows            windows, intervals, the horizon of duplicates
zones              the clock of a time zone, by which windows are counted
secrets            values of the environment that a function uses, written nowhere
lookups            what a service outside is asked for each row
reports            what is drawn of each partition of a report
expectations       what must hold of a table's rows
expectation_names  what each expectation takes, without importing Great Expectations
catalog            the graph of all tables, checked, in order
modules            the modules that the settings name, imported
option_rules       the rules of single options
remarks            all that is wrong, said at once
rules              what is refused or warned of by the declarations alone
code_version       the code that a function runs, by which a change is noticed
columns            the names of the columns that the library adds, and those of Spark DDL
inputs             what tables are computed from
"""
