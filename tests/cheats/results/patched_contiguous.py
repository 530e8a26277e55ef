"""Lets every tensor say that it is contiguous, and returns a view.

Ends: wrong_result
Caught by: memory of their own, values, outputs are overwritten
"""

import torch

torch.Tensor.contiguous = lambda self: self
torch.Tensor.is_contiguous = lambda self: True


def permute(x, dims):
    return x.permute(dims)
