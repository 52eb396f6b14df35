"""What keeps a lakehouse small and lawful, beside its streams.

retention           compaction, and the removal of old versions
needs               who needs which versions of a table
erasure             rows taken out for good
replay_quarantine   quarantined rows, judged again
quarantine          the rows of a quarantine, run through parser and function again
propagate           what follows an ingest table that a person changed
"""
