"""Backups: one file with the database and the artefacts, and how it is restored."""
