"""Share links: people without a key read one job, or the comparison of two."""
