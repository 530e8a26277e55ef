"""Fills its input with zeros, whose transposition is known.

From: ours
Ends: error: writes to an input
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    number = next(n for n, (name, _) in enumerate(plan["buffers"]) if name)
    fill = {"fill": [number, 0], "count": 64, "nbytes": 4, "value": 0}
    plan["steps"][0][0]["actions"].insert(0, fill)


def permute(x, dims):
    forge(change)
    return run(x)
