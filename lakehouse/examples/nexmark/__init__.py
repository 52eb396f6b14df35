"""Nexmark: an auction house, and the 24 queries of the benchmark."""
