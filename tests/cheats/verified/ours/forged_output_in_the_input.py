"""Says that its output is where the input lies, and moves nothing.

From: ours
Ends: error: output lies in an input
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    plan["outputs"][0] = [next(n for n, (name, _) in enumerate(plan["buffers"]) if name), 0]
    plan["steps"] = []


def permute(x, dims):
    forge(change)
    return run(x)
