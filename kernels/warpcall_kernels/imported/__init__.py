"""Problems and implementations that were written for KernelBench, or as tasks of gpu-mode.

`warpcall import` makes sources that call this package. It runs where uploaded code runs.
"""
