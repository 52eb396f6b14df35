"""What keeps a lakehouse small and lawful, beside its streams.

    upkeep              compaction and retention
    erasure             rows taken out for good
    replay_quarantine   quarantined rows, judged again
    quarantine          what was quarantined, run through parser and function again
    propagate           what follows a record that a person changed
"""
