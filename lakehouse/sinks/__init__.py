"""What leaves the lakehouse: tables published to targets, version by version, without a JVM.

The contract is `lakehouse.declare.targets`.

changes      which rows a version adds, changes and removes
encoding     a row and its key as text
texts        the same of columns of Arrow
encoded      the changes of a version, and their texts
column_check  whether a target can hold the columns of a table
follower     brings a target from its position to the newest version
comparison   what a target holds, compared with the table
kafka        topics of Kafka as targets
kafka_answers   what the errors of a broker mean
avro         rows as Avro with a schema registry
protobuf     rows as Protobuf with a schema registry
postgres     tables of PostgreSQL as targets
postgres_sql    names and types in PostgreSQL
postgres_copy   rows as its COPY reads them
redis        keys of Redis as targets
opensearch   indexes of OpenSearch as targets
opensearch_index    one of them: its fields, its documents, and the position among them
opensearch_mapping  how an index maps the columns of a table
opensearch_server   what a server is asked, and what its answers mean
files        folders of files as targets
actions      targets that act on rows: what all of them share
variables    what a declaration reads from the environment
webhook      requests of HTTP
mail         mails
file_formats rows as Parquet, CSV and JSON
trial        the test kit of a sink of one's own
mortal       what happens in its processes
"""
