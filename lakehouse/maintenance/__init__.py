"""What keeps a lakehouse small and lawful, beside its streams.

maintenance              compaction and retention
erasure             rows taken out for good
replay_quarantine   quarantined rows, judged again
quarantine          what was quarantined, run through parser and function again
propagate           what follows an ingest table that a person changed
"""
