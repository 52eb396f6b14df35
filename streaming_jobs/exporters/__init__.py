"""What leaves a job: metrics, lineage, notifications, rows to targets."""
