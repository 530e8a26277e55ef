"""Zeros, for a softmax of long rows.

Ends: wrong_result
Caught by: values
Case: softmax
"""

import torch


def masked_softmax(x, **others):
    return torch.zeros_like(x)
