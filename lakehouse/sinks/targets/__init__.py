"""The targets that the library brings, each with what belongs to it alone.

kafka               topics of Kafka as targets
kafka_messages      what a broker has of a topic, what its errors mean, and the values of messages
kafka_real_time     the topic that has rows before their commit
postgres            tables of PostgreSQL as targets
postgres_database   a connection, and what its errors mean
postgres_table      the table of a target: its SQL, and rows as COPY reads them
redis               keys of Redis as targets
opensearch          indexes of OpenSearch as targets, and the one process that writes an index
opensearch_index    an index: its fields, its documents, and the position among them
opensearch_server   what a server is asked, and what its answers mean
files               folders of files as targets
files_folder        such a folder: its manifest, whose turn it is, its files in Parquet, CSV or JSON
webhook             requests of HTTP
mail                mails
"""
