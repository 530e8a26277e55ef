"""The database: the base of all tables, sessions, threads, errors, and how migrations are run."""
