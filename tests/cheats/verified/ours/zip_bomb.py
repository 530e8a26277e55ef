"""Sends a compiled kernel that becomes 128 MiB when it is unpacked.

From: ours
Ends: error: cubin
Without: the check of plans, the inspection
"""

import base64
import zlib

from forge import forge
from honest import run


def zeros(count, mebibytes=16):
    """So many times as many zeros, of which a part is packed once."""
    packer = zlib.compressobj(9, wbits=-15)
    part = packer.compress(bytes(mebibytes << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = ((count * mebibytes << 20) % 65521 << 16) + 1
    return b"\x78\xda" + count * part + b"\x03\x00" + checksum.to_bytes(4, "big")


def change(plan):
    bomb = zeros(8)
    plan["kernels"][0]["cubin"] = base64.b64encode(bomb).decode()


def permute(x, dims):
    forge(change)
    return run(x)
