"""Long-running streaming jobs: a process each, which describes itself in files that others read."""
