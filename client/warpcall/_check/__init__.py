"""The command `check`, and how the results of jobs that only check are shown."""
