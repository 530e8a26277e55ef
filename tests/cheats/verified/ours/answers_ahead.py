"""Writes an answer of its own to the socket before the request for its plan arrives.

From: ours
Ends: crashed: sent what it may not
Without: numbers of requests
"""

import os
import stat

from honest import run

ANSWER = b'{"plan": {"gpu": "sm_90", "kernels": [], "buffers": [["", 24576]], "steps": [], '
ANSWER += b'"outputs": [[0, 0]]}, "number": 7}'


def permute(x, dims):
    for descriptor in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, len(ANSWER).to_bytes(4, "little") + ANSWER)
        except OSError:
            continue
    return run(x)
