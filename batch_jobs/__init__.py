"""Batch runs: each a process of its own, runnable with `python -m`.

Its exit code is its verdict.
"""
