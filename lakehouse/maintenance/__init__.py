"""Maintenance: it keeps a lakehouse small and lawful, beside its streams.

retention           compaction, and the removal of old versions
needs               the versions of a table that its readers need
erasure             the removal of rows for good
replay_quarantine   quarantined rows, run through parser and function again
propagate           the tables that follow an ingest table that a person changed
"""
