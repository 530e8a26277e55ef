"""Has a grid that no GPU takes.

From: ours
Ends: error: grid
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    plan["steps"][-1][0]["actions"][-1]["grid"] = [1 << 40, 1, 1]


def permute(x, dims):
    forge(change)
    return run(x)
