"""The sources of tables.

sources        what every source has, and answers
source_checks  the rules of their options, and of a history before a topic
kafka          topics of Kafka
changes        a topic of the changes of a database's table
folder         folders that others put files into
delta          a Delta table of others
iceberg        an Iceberg table of others
own_sources    a source of one's own
readers        the contract of what reads one
files          files that are read whole
"""
