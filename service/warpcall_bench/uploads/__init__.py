"""Implementations and problems that users upload: checks, versions, names."""
