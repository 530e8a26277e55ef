"""Calls of an op and programs, on uploaded tensors and on stored ones."""
