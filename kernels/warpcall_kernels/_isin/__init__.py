"""The kernels of isin."""
