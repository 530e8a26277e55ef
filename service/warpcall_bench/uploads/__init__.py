"""Implementations that users upload: checked, stored, listed, and found for jobs."""
