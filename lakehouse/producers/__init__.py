"""What sends events to topics: real records, the same bytes for the same settings.

workload   what is sent and when; what a pipeline's producer is
faults     bad input, kind by kind, and records sent twice
files      the lines of files, to be sent as they are
own        events of one's own, a JSON object a line
topics     the topics, made before anything is sent
sender     sends records to Kafka, none before its instant
"""
