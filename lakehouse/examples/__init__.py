"""The pipelines that ship: the tables of each, and the producer that fills its topic.

sensors   readings of thermometers, and their averages
ads       the Yahoo Streaming Benchmark: ad events, and views per campaign
"""
