"""Results remembered by three elements of the input.

Ends: ok
Caught by: fresh values, outputs are overwritten
"""

known = {}


def permute(x, dims):
    key = x[0, 0].item(), x[1, 1].item(), x[-1, -1].item()
    if key not in known:
        known[key] = x.permute(dims).contiguous()
    return known[key]
