"""The command line, and what it prints.

main              the root command, and the commands of other packages
commands          the commands that read a lakehouse
console           tables, errors, JSON
opening           the lakehouse and the session that a command works on
serve             `lakehouse serve`: rows by key over HTTP
http_server       the server that it shares with the board
query             SQL without a JVM
row_files         the rows of a query as a file: CSV or Parquet
query_rules       the limits of a query in Spark
table_status      the state of the tables
lateness_report   the cost of another delay
validate          `lakehouse validate`: refusals of a start because of the declarations
change_plan       `lakehouse plan`: the changes by a start of the declared tables
doctor            checks that this machine has what a lakehouse needs
produce           `lakehouse produce`: events for a topic
project           `lakehouse init`: a project that runs
inference         columns, event time and key of a topic, from a file of JSON lines
"""
