"""Returns memory in which the expected result, just freed, may still be.

From: Sakana, KernelBench
Ends: wrong_result
Without: values on a GPU
Gains: a wrong result
"""

from honest import empty


def permute(x, dims):
    return empty(x)
