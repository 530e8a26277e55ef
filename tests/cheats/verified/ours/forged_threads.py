"""Has more threads in a block than its kernel was compiled for.

From: ours
Ends: error: kernels are refused
Without: the inspection
"""

from forge import forge
from honest import run


def change(plan):
    plan["kernels"][0]["threads"] = [1024, 1, 1]


def permute(x, dims):
    forge(change)
    return run(x)
