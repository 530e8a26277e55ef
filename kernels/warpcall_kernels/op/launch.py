"""What every launcher shares: the choice of road for a call, launches, registration with torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.errors import InvalidInput

VECTOR_BYTES = 16  # the widest access of a thread

# Where a tensor lies, all that a plan may depend on: shape, strides, dtype, address modulo 16.
Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int]


def runs_kernel(x: Tensor) -> bool:
    """Whether Triton takes this tensor: on a GPU always, on the CPU only under its interpreter."""
    return x.is_cuda or triton.knobs.runtime.interpret


def layout(t: Tensor) -> Layout:
    """The part of a plan's key that is this tensor's."""
    return t.shape, t.stride(), t.dtype, t.data_ptr() % VECTOR_BYTES


def meta(t: Layout) -> Meta:
    """The part of a layout that an op's `infer` looks at."""
    return Meta(t[0], t[2])


class Launch:
    """A launch with all settled but its tensors, so that repeating it costs some 4 us.

    Triton's own road finds out at each call which variant of a kernel the arguments want, which took
    15 to 40 us for ours. A plan has settled that, for it depends on nothing but layouts: the variant
    is looked up at the first call on a device, and called by its handle from then on. (Launch hooks,
    which profilers may set in Triton, see the first call only.)

    Args:
        kernel: a `triton.jit` function that takes its tensors first.
        grid: programs along up to three axes.
        arguments: all others of the kernel by name, and options such as num_warps.
        words: for each tensor, what it is taken as an array of, or None: what it is.
    """

    __slots__ = ("_ready", "_rest", "arguments", "grid", "kernel", "words")

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: Mapping[str, Any],
        words: tuple[Any, ...] = (),
    ) -> None:
        self.kernel = kernel
        self.grid = (*grid, 1, 1)[:3]
        self.arguments = arguments
        self.words = words
        self._rest = tuple(arguments[name] for name in kernel.arg_names if name in arguments)
        self._ready: dict[int, tuple[Any, ...]] = {}

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on the current stream of the device of the first tensor.

        Each tensor lies as the plan was told: its dtype, and its address modulo 16 bytes.
        """
        assert tensors[0] is not None
        device = tensors[0].get_device()  # -1 is not a GPU
        if device >= 0 and device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):  # Triton launches on the current one
                return self(*tensors)
        ready = self._ready.get(device)
        if ready is None:
            return self._find(device, tensors)
        run, function, metadata = ready
        run(
            *self.grid,
            torch._C._cuda_getCurrentRawStream(device),
            function,
            metadata,
            *(None, None, None),  # what hooks would be told, and the hooks
            *[None if t is None else t.data_ptr() for t in tensors],
            *self._rest,
        )
        return None

    def _find(self, device: int, tensors: tuple[Tensor | None, ...]) -> None:
        """Launch by Triton's own road, which compiles, and keep the handle."""
        operands = list(tensors)
        for i, word in enumerate(self.words):
            if word is not None:
                operands[i] = triton.reinterpret(operands[i], word)
        compiled = self.kernel[self.grid](*operands, **self.arguments)
        if device >= 0 and compiled is not None:  # the interpreter compiles nothing
            self._ready[device] = (compiled.run, compiled.function, compiled.packed_metadata)


def check_device(x: Tensor, **others: Tensor | None) -> None:
    """Raise InvalidInput unless all tensors live where `x` does."""
    for name, t in others.items():
        if t is not None and t.device != x.device:
            raise InvalidInput(name, f"{name} must be on {x.device}, got {t.device}")


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
