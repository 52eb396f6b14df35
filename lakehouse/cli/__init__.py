"""The command line, and what it prints.

main              the root command; what other packages bring
commands          the commands that read a lakehouse
console           tables, errors, JSON
opening           the lakehouse and the session that a command works on
serve             `lakehouse serve`: rows by key over HTTP
query             SQL without a JVM
query_rules       what a query in Spark may do
table_status      what is known about the tables
lateness_report   what another delay would have cost
validate          `lakehouse validate`: what a start would refuse in the declarations
change_plan       `lakehouse plan`: what a start of the declared tables would change
doctor            whether this machine has what a lakehouse needs
produce           `lakehouse produce`: events for a topic
project           `lakehouse init`: a project that runs
inference         what a file of JSON lines says of a topic: columns, event time, key
"""
