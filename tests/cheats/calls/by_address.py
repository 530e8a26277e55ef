"""Results remembered by the address of the input.

Ends: wrong_result
Caught by: memory of their own, values
"""

known = {}


def permute(x, dims):
    if x.data_ptr() not in known:
        known[x.data_ptr()] = x.permute(dims).contiguous()
    return known[x.data_ptr()]
