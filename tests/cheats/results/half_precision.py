"""Computes a softmax of float32 in float16.

Ends: wrong_result
Caught by: values
Case: softmax
Gains: a wrong result
"""

import torch


def masked_softmax(x, **others):
    return torch.softmax(x.half(), -1).float()
