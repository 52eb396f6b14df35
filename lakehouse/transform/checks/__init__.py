"""Which rows are good, and where the others go.

years             instants and dates that Python has not
quality           expectations as columns, and as a suite
compiled_rules    rules that were compiled before, kept as SQL
judged_rows       good rows, and those of the quarantine
"""
