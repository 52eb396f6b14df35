"""The stream: how the tables of a pipeline are filled as their inputs grow. It stands on `batch`.

strategy        which engine a table has: Spark's own streaming query, or steps of our own
queries         the query of a table, by kind
input_frontier  hands the frontier of an input to Spark's queries, also when no row comes
micro_batch     how one micro-batch or step is written: exactly once
prepared_steps  small steps by a plan that is made once
late_counts     how many rows a step's inputs brought, and how many were late
advance         one limited step after another
real_time       sends rows before their commit
positions       how far a table has read its input
news            wakes steps when another table of this process commits
consistent      versions of several inputs that have read the same of what they share
handover        where a new table's batch run ends and its stream begins
generations     where a query resumes, or begins again
beside          the stream of the version beside a table
rescaling       divides the state of Spark's queries again, while their job is stopped
lag             how long unread commits wait
waiting         why a table waits or has no rows, in a line
pauses          for how long a stream may rest
state_reader    the state of Spark's queries, by key
reading         sources in steps: which records a step reads
engines         the engines that fill tables step by step
"""
