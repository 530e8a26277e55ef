"""Says that its calls take hours, so that it may hang as long.

Ends: timeout: did not end
Case: small
"""

from warpcall_kernels.execution import serve

facts = serve._Call._facts
serve._Call._facts = lambda self: {**facts(self), "rough_us": 9e9}


import itertools

numbers = itertools.count()


def permute(x, dims):
    if next(numbers) > 8:
        while True:
            pass
    return x.permute(dims).contiguous()
