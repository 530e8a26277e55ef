"""Launches its kernel nine times, as if a call were a program.

From: ours
Ends: error: launches 9 kernels
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    plan["steps"] = 9 * plan["steps"]


def permute(x, dims):
    forge(change)
    return run(x)
