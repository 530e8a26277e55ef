"""Sends a compiled kernel that becomes a gigabyte when it is unpacked.

From: ours
Ends: error: cubin
Without: the check of plans, the inspection
"""

import base64
import zlib

from forge import forge
from honest import run


def change(plan):
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(1024)]
    bomb = b"".join((*parts, packer.flush()))
    plan["kernels"][0]["cubin"] = base64.b64encode(bomb).decode()


def permute(x, dims):
    forge(change)
    return run(x)
