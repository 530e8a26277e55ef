"""Checks whether a server can run here: the command `doctor`, and what /readyz names."""
