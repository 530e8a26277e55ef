"""Says that its kernel takes fewer arguments than it reads.

From: ours
Ends: error: kernels are refused
Without: the inspection
"""

from forge import forge
from honest import run


def change(plan):
    kernel = plan["kernels"][0]
    launch = plan["steps"][-1][0]["actions"][-1]
    kernel["parameters"], launch["arguments"] = kernel["parameters"][:2], launch["arguments"][:2]


def permute(x, dims):
    forge(change)
    return run(x)
