"""Producers send events to topics: real records, the same bytes for the same settings.

workload   the settings of a producer, its records and their moments
faults     bad input, kind by kind, and records sent twice
files      the lines of files, to be sent as they are
own        events of your own, a JSON object a line
registry   the producer of a pipeline, beside its tables
topics     the topics, made before anything is sent
sender     sends records to Kafka, none before its instant
"""
