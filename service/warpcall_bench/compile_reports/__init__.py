"""Compile reports: what the Triton kernels of an implementation need on a GPU, and their texts."""
