"""The servers that share a database: how each registers, and what each knows of the others."""
