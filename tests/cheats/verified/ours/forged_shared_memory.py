"""Asks for more shared memory than a block can have.

From: ours
Ends: error: shared memory
Without: the inspection
"""

from forge import forge
from honest import run


def change(plan):
    plan["kernels"][0]["shared_bytes"] = 256 << 10


def permute(x, dims):
    forge(change)
    return run(x)
