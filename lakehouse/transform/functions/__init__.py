"""Process functions and patterns: Python over the rows of a key.

process        process functions: state and timers
process_state  the life of one key: rows in event time, timers between them, its state as text
process_ttl    a process function over a range: kept states in, rows and states out
patterns       patterns over the rows of a key
pattern_steps  the steps of a pattern: the rows that they take, how often, and what must not come
automaton      the rows that make a match
"""
