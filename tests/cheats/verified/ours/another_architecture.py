"""Compiles for another GPU than that of the job, and says that it is for this one.

From: ours
Ends: error: kernels are refused
Without: the inspection
"""

import base64
import zlib

from forge import forge
from honest import run


def change(plan):
    kernel = plan["kernels"][0]
    code = bytearray(zlib.decompress(base64.b64decode(kernel["cubin"])))
    flags = int.from_bytes(code[48:52], "little")  # of the header of an ELF file
    for shift in (0, 8, 16):  # versions of CUDA have the architecture in different places
        if flags >> shift & 0xFF == 90:
            flags = flags & ~(0xFF << shift) | 80 << shift
    code[48:52] = flags.to_bytes(4, "little")
    kernel["cubin"] = base64.b64encode(zlib.compress(bytes(code))).decode()


def permute(x, dims):
    forge(change)
    return run(x)
