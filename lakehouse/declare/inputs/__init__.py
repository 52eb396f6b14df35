"""The sources of tables.

sources        topics of Kafka, folders, and files that are read whole
source_checks  the rules of their options
changes        a topic with the changes of a database's table
readers        the contract of a class that reads a source of your own
own_sources    a source of your own
delta          a Delta table of others
iceberg        an Iceberg table of others
history        a folder or a table of others that is read before a topic
"""
