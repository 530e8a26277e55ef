"""The history of the database's tables, one file for each change."""
