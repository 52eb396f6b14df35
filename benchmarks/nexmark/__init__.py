"""Nexmark: an auction house, and the 24 queries of the benchmark.

tables       the tables: an ingest table for each topic, and the queries
producer     people, auctions and bids
comparison   what each query costs, ours beside a stream of Spark alone
run          the process that measures it
spark        the streams of Spark alone
"""
