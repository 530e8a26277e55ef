"""Asks for more memory than any GPU has.

From: ours
Ends: error: size of a buffer
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    plan["buffers"].append(["", 1 << 60])


def permute(x, dims):
    forge(change)
    return run(x)
