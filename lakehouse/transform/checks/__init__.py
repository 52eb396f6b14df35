"""Checks of rows: good ones, and those of the quarantine.

years             instants and dates that Python lacks
quality           expectations as columns, and as a suite
compiled_rules    rules that were compiled before, kept as SQL
judged_rows       good rows, and those of the quarantine
"""
