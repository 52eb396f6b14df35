"""The lakehouse in Dagster: its graph, its partitions, its batch runs and reconciliations, its streaming jobs."""
