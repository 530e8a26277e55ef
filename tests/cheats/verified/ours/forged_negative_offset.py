"""Lets its output begin before the memory that it lies in.

From: ours
Ends: error: offset
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    plan["outputs"][0][1] = -4096


def permute(x, dims):
    forge(change)
    return run(x)
