"""Kernels compiled before they are needed, and the cache that holds them."""
