"""What is kept below the root, and how it is written.

    small_commits   rows of a short step, written and committed without a Spark job
"""
