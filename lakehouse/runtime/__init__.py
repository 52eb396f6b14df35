"""Spark, its jars, Kafka, services and sources outside.

spark_session      the Spark session
jars               the jars that pip does not bring
object_store       a root in an object store, as Spark reads and writes it
prepared_plans     plans of Spark's that are made once and run many times
cds_archive        Spark's classes, mapped instead of loaded
http_client        servers, asked over HTTP
schema_registry    the schema registry, asked over HTTP
protobuf           its schemas of Protobuf, compiled
own_source         the class of a source of one's own, called and held against its contract
quiet_daemon       Spark's Python daemon, without a full collection after each task
resettable         its test kit: the same range always gives the same records
service            the service of a lookup: questions, retries, a cache
kafka_options      the Kafka properties of the settings, in both dialects
kafka_client       a broker that answers, is away, or turns its client away
kafka_topics       topics at the broker: ids, partitions, offsets
kafka_in_spark     the same as kafka_client of Spark's own clients
kafka_broker       the embedded broker
kafka_properties   its configuration
kafka_address      the address of the broker
"""
