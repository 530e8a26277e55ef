"""Profiles that need a process of their own: how a job's process runs it, and what it found."""
