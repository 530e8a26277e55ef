"""Lets its kernel write where the memory of another call lies.

From: ours
Ends: error: offset
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    launch = plan["steps"][-1][0]["actions"][-1]
    launch["arguments"][1][1] = 1 << 40


def permute(x, dims):
    forge(change)
    return run(x)
