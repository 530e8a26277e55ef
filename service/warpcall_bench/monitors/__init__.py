"""Monitors: measurements that the server repeats, and steps that it finds in their history."""
