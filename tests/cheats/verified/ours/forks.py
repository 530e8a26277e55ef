"""Leaves a process behind that answers the next request in place of the recorder.

From: ours
Ends: honest or crashed
Without: none
"""

import os

from honest import run


def permute(x, dims):
    if not os.fork():
        return run(x)
    os._exit(0)
