"""Bounded runs: each a process of its own, runnable with `python -m`; its exit code is its verdict."""
