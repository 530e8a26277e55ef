"""Upload processes as the job's process sees them, and their own first code."""
