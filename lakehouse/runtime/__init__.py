"""What the library runs on: Spark, its jars, Kafka.

spark_session      the Spark session
jars               the jars that pip does not bring
cds_archive        Spark's classes, mapped instead of loaded
schema_registry    the schema registry, asked over HTTP
protobuf           its schemas of Protobuf, compiled
service            the service of a lookup: questions, retries, a cache
kafka_options      the Kafka properties of the settings, in both dialects
kafka_broker       the embedded broker
kafka_properties   its configuration
kafka_address      which broker this lakehouse talks to
"""
