"""Verifications of kernels in the SDK and on the command line."""
