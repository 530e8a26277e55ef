"""Profiles that need a process of their own: how a job's process runs it, such as Nsight Compute."""
