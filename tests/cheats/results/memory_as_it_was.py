"""Memory as it was: the result of the call before often lies there.

Ends: wrong_result
Caught by: values
"""

import torch


def permute(x, dims):
    return torch.empty([x.shape[d] for d in dims], dtype=x.dtype)
