"""Takes all the memory of its machine while its plan is recorded.

From: ours
Ends: oom or crashed or error
Without: none
Apart: yes
"""

from honest import run


def permute(x, dims):
    kept = [bytearray(64 << 20) for _ in range(1 << 12)]
    return run(x) if kept else None
