"""The batch run: the same plan over a closed range of stored input.

batch_state        the state of a table, read once from commit logs and handed down
compute            the rows of a range; backfills
publish            writes a run into its table: whole partitions
reference_tables   tables without event time, computed whole
kept_states        the states with which a run of a process function begins
lookups            questions to services for rows without a recorded answer
refreshed          refreshed reference tables as rows saw them
late_merge         late rows, and their merge under the policy `update`
"""
