"""Monitors: the part of the SDK, and the commands."""
