"""Artefacts: files that belong to a job, such as a profile. Their rows are in the database."""
