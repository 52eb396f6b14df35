"""Records as rows.

decode           records as rows
values           texts as values of declared types, exactly or not at all
reference_files  files of reference data as rows
schemas          schemas of a registry: the ids that values name, and the schemas that can be read
keys             the key and the headers of a record, as text
protobuf         values of Protobuf as columns
changes          change events of Debezium, and changes of a Delta table of others, as rows
record_columns   the columns of a decoded record that are kept
"""
