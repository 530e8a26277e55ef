"""What every launcher shares: registration with torch, and the choice of road for a call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from warpcall_kernels._op import Meta

_NO_SWITCH: AbstractContextManager[Any] = nullcontext()


def runs_kernel(x: Tensor) -> bool:
    """Whether Triton takes this tensor: on a GPU always, on the CPU only under its interpreter."""
    return x.is_cuda or triton.knobs.runtime.interpret


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """Make the GPU that holds `x` current, because Triton launches on the current one."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return _NO_SWITCH
    return torch.cuda.device(x.device)


def direct(*tensors: Tensor | None) -> bool:
    """Whether a call may skip torch's dispatcher (some 10 us): nothing traces, records or wraps.

    The dispatcher also resolves what is conjugated or negated only by a flag of the tensor.
    """
    if torch.compiler.is_compiling():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    grad = torch.is_grad_enabled()
    for t in tensors:
        if t is None:
            continue
        if type(t) is not Tensor or (grad and t.requires_grad) or t.is_neg() or t.is_conj():
            return False
    return True


def register(
    name: str,
    launch: Callable[..., Any],
    infer: Callable[..., dict[str, Meta]],
    *,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """Make `launch` the torch custom op `warpcall::<name>`, with a meta function, and autograd if given.

    Args:
        name: with underscores, such as "masked_softmax".
        launch: takes and returns tensors; its annotations become the op's schema.
        infer: the op's `infer`; its outputs, in order, are what tracing sees.
        backward, setup_context: as in `torch.library.register_autograd`.
    """
    op = torch.library.custom_op(f"warpcall::{name}", launch, mutates_args=())

    def fake(*args: Any, **kwargs: Any) -> Any:
        metas = infer(*args, **kwargs).values()
        like = next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
        made = tuple(like.new_empty(m.shape, dtype=m.dtype) for m in metas)
        return made if len(made) > 1 else made[0]

    op.register_fake(fake)
    if backward is not None:
        op.register_autograd(backward, setup_context=setup_context)
    return op
