"""Checks of rows: good ones, and those of the quarantine.

years             instants and dates that Python lacks
quality           expectations as columns, compiled once, and as a suite
judged_rows       good rows, and those of the quarantine
"""
