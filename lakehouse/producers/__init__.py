"""Producers send events to topics: real records, the same bytes for the same settings.

workload   the settings of a producer, its records and their moments
faults     bad input, kind by kind, and records sent twice
files      the lines of files, each a message as it is
registry   the producer of a pipeline, and the topics that it fills
sender     sends records to Kafka, none before its instant
"""
