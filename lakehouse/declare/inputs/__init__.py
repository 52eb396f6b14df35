"""What tables are computed from.

sources        topics of Kafka, folders, and files that are read whole
source_checks  the rules of their options
changes        a topic of the changes of a database's table
readers        the contract of what reads a source of one's own
own_sources    such a source
delta          a Delta table of others
iceberg        an Iceberg table of others
history        a folder or a table of others that is read before a topic
"""
