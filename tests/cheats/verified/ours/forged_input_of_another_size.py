"""Says that its input is larger than it is, so that its kernel may read what lies behind it.

From: ours
Ends: error: offset
Without: the check of plans
"""

from forge import forge
from honest import run


def change(plan):
    for buffer in plan["buffers"]:
        if buffer[0]:
            buffer[1] = 1 << 40
    launch = plan["steps"][-1][0]["actions"][-1]
    launch["arguments"][0][1] = 1 << 30


def permute(x, dims):
    forge(change)
    return run(x)
