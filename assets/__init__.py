"""The lakehouse in Dagster: its graph, its partitions, its bounded runs and proofs, its streaming jobs."""
