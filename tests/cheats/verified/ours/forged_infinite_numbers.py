"""Has numbers that are not finite, or not numbers at all.

From: ours
Ends: error: grid
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    launch = plan["steps"][-1][0]["actions"][-1]
    launch["grid"] = [float("inf"), True, 1]


def permute(x, dims):
    forge(change)
    return run(x)
