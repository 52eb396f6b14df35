"""Records as rows.

decode           records as rows
values           texts as values of declared types, exactly or not at all
reference_files  files of reference data as rows
schemas          schemas of a registry: which ids values name, what of them is readable
keys             the key of a record, as text
protobuf         values of Protobuf as columns
changes          change events of Debezium as rows
change_feed      changes of a Delta table of others as rows
record_columns   what of a decoded record is kept
"""
