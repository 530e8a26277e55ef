"""Launches a kernel that its compiled code does not have.

From: ours
Ends: error: kernels are refused
Without: the inspection
"""

from forge import forge
from honest import run


def change(plan):
    plan["kernels"][0]["name"] = "another"


def permute(x, dims):
    forge(change)
    return run(x)
