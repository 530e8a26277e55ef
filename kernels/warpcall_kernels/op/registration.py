"""Registers launchers as custom ops of torch, and says when a call may skip torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.op.declaration import Meta


def may_skip_dispatcher(*tensors: Tensor | None) -> bool:
    """Whether a launcher may be called without torch's dispatcher, which takes some 10 us.

    The dispatcher is needed while something traces, records or wraps the call: torch.compile, a
    dispatch mode, functorch, autograd, or a subclass of Tensor. It also computes the values of
    tensors that are conjugated or negated only by a flag.
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
    """Make `launch` the torch custom op `warpcall::<name>`, with a meta function.

    Args:
        name: the op's name with underscores, such as "masked_softmax".
        launch: takes and returns tensors; its annotations become the schema of the custom op.
        infer: the `infer` of the op; its outputs, in order, are what tracing sees.
        backward, setup_context: as in `torch.library.register_autograd`; without them the op has no
            gradient.
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
