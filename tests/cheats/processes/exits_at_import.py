"""Ends its process when it is imported.

Ends: crashed: exited with status 0
Case: small
"""

import os

os._exit(0)


def permute(x, dims):
    return x.permute(dims).contiguous()
