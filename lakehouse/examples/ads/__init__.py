"""The Yahoo Streaming Benchmark: ad events, and views per campaign."""
