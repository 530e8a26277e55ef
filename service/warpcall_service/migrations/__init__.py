"""The history of all tables, also those of the platform: one file for each change."""
