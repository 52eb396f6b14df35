"""Rows by key: the files of keyed tables, and the indexes by which rows are found.

keyed_files       tables with a row, or versions, for each key: a step writes what it changes
lookup_answers    answers of services to a table's lookups, in a table beside it
row_index         rows of a table without keys by the values of some columns
event_time_index  rows of data files by an instant that they have
keyed_reader      a keyed table as another reads it: rows that came and went, and the rows of some keys
key_index         the places of the rows of each key
point_reads       the rows of one key, without a scan
state_files       the states that a process function keeps
"""
