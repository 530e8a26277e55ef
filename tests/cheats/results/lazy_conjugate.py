"""A lazy conjugate: its values are right, those in its memory are not.

Ends: wrong_result: lazy conjugate
Caught by: kinds of results, values
Case: conjugate
Gains: a wrong result
"""

import torch


def permute(x, dims):
    return torch.conj_physical(x.permute(dims)).contiguous().conj()
