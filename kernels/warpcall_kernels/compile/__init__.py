"""Compilation of kernels ahead of their first call, and the cache that keeps them."""
