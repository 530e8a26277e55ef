"""Sends a file that is damaged in place of a compiled kernel, to break what reads it.

From: ours
Ends: error: kernels are refused
Without: the inspection
"""

import base64
import random
import zlib

from forge import forge
from honest import run


def change(plan):
    kernel = plan["kernels"][0]
    code = bytearray(zlib.decompress(base64.b64decode(kernel["cubin"])))
    for place in range(32, 64):
        code[place] = random.randrange(256)
    kernel["cubin"] = base64.b64encode(zlib.compress(bytes(code))).decode()


def permute(x, dims):
    forge(change)
    return run(x)
