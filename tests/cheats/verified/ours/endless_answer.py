"""Answers with a plan that does not end.

From: ours
Ends: crashed: sent what it may not
Without: none
"""

from forge import forge
from honest import run


def change(plan):
    plan["kernels"][0]["cubin"] = "A" * (64 << 20)


def permute(x, dims):
    forge(change)
    return run(x)
