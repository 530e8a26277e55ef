"""Verifications: whether kernels can be timed as verified ones, and what a call of them launches."""
