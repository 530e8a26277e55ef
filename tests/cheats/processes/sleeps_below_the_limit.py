"""Sleeps nearly as long as a call may take, and returns an old result.

Ends: wrong_result
Case: small
"""

import time

kept = []


def permute(x, dims):
    if not kept:
        kept.append(x.permute(dims).contiguous())
        return kept[0].clone()
    time.sleep(0.7)
    return kept[0]
