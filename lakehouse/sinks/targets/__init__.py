"""The targets that the library brings, each with what belongs to it alone.

kafka               topics of Kafka as targets
kafka_messages      what a broker has of a topic, and what its errors mean
kafka_values        values of messages: JSON, or by a schema of the registry
postgres            tables of PostgreSQL as targets
postgres_sql        names and types in PostgreSQL
postgres_database   a connection, and what its errors mean
postgres_table      the table of a target, and rows as COPY reads them
redis               keys of Redis as targets
opensearch          indexes of OpenSearch as targets
opensearch_writer   who writes an index, and how
opensearch_index    one of them: its fields, its documents, and the position among them
opensearch_mapping  how an index maps the columns of a table
opensearch_server   what a server is asked, and what its answers mean
files               folders of files as targets
files_folder        such a folder: its manifest, whose turn it is, its files
webhook             requests of HTTP
mail                mails
"""
