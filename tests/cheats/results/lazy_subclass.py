"""A subclass of Tensor that computes when somebody looks at it.

Ends: wrong_result: must be a torch.Tensor
Caught by: kinds of results, our clock
"""

import torch


class Lazy(torch.Tensor):
    made = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            for one in args:
                if isinstance(one, Lazy) and one.made is not None:
                    x, dims = one.made
                    one.made = None
                    one.copy_(x.permute(dims))
            return function(*args, **(kwargs or {}))


def permute(x, dims):
    out = torch.empty([x.shape[d] for d in dims], dtype=x.dtype).as_subclass(Lazy)
    out.made = x, dims
    return out
