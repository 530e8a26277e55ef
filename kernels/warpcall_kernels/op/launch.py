"""Launches of kernels: what a launcher's plan depends on, and the launch that the plan settles."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.driver_launch import DriverLaunch
from warpcall_kernels.op.errors import InvalidInput

VECTOR_BYTES = 16  # the widest access of a thread
PDL_CAPABILITY = 90  # the least compute capability, times 10, with programmatic dependent launch
SHARED_BYTES = 232_448  # of shared memory, which a program may have on an H200
MULTIPROCESSORS = 132  # of an H200

# A Layout as a bare tuple: the key under which a launcher keeps the plan of a call. A launcher
# makes one for each tensor of each call, and a NamedTuple would take twice as long.
LayoutKey = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int]

_others_are_interpreted = False  # set by `interpret_only_others`
_takes_metas = False  # set by `take_metas`


class Layout(NamedTuple):
    """How a tensor lies in memory: all that a plan may depend on. `Layout(*key)` unpacks a key.

    `address` is the address of the first element modulo `VECTOR_BYTES`; `strides` are in elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    address: int

    @property
    def meta(self) -> Meta:
        """The part that an op's `infer` looks at."""
        return Meta(self.shape, self.dtype)


def layout_key(t: Tensor) -> LayoutKey:
    """The part of a plan's key that belongs to this tensor."""
    return t.shape, t.stride(), t.dtype, t.data_ptr() % VECTOR_BYTES


def empty_like(x: Tensor) -> Tensor:
    """A new contiguous tensor with the shape, the dtype and the device of x.

    `x.new_empty(x.shape)` takes 1.7 us, since it reads the shape dim by dim; this takes 0.8 of a
    contiguous x (2 cores, torch 2.13).
    """
    return torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)


def runs_kernel(x: Tensor) -> bool:
    """Whether Triton takes this tensor: on a GPU, under Triton's interpreter, or see `take_metas`."""
    return (
        x.is_cuda
        or (triton.knobs.runtime.interpret and not _others_are_interpreted)
        or (_takes_metas and x.is_meta)
    )


def take_metas(takes: bool) -> None:
    """Whether launchers call their kernels for "meta" tensors, as `compile/warm.py` needs.

    Triton's own switch `interpret` would do the same, but a module with kernels that another thread
    imports meanwhile would then be interpreted for ever.
    """
    global _takes_metas
    _takes_metas = takes


def interpret_only_others() -> None:
    """Run plain torch for tensors on the CPU, although this process has TRITON_INTERPRET=1.

    A process that runs uploaded kernels without a GPU interprets these. Our ops, which uploads may
    call, compute there as they do in every other process without a GPU.
    """
    global _others_are_interpreted
    _others_are_interpreted = True


def overlaps_launches() -> bool:
    """Whether a kernel may be launched before the one that it waits for has ended.

    That is programmatic dependent launch: a kernel with the option `launch_pdl` calls `gdc_wait`
    before it reads what the kernel before it wrote, and that one calls `gdc_launch_dependents`. It
    takes compute capability 9.0, which Triton's interpreter and older GPUs lack. A plan does not
    know the device of its call, so that all devices must have it.
    """
    if triton.knobs.runtime.interpret:
        return False
    if _takes_metas:  # kernels are compiled for this target, which need not be a device
        target = triton.runtime.driver.active.get_current_target()
        return bool(target.backend == "cuda" and target.arch >= PDL_CAPABILITY)
    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    capabilities = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    return all(10 * major + minor >= PDL_CAPABILITY for major, minor in capabilities)


def waiting() -> dict[str, bool]:
    """The arguments of a launch that waits for the one before it itself, where a device can do that.

    It begins when all programs of that one have ended, or have asked for it.
    """
    return {"PDL": True, "launch_pdl": True} if overlaps_launches() else {"PDL": False}


def end_failed_capture(graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
    """Undo what the capture of a CUDA graph that failed has left in torch.

    In torch 2.11 `capture_end` raises the error of a capture before it ends the capture in the
    allocator (https://github.com/pytorch/pytorch/pull/180395). From then on the process would give
    no cached memory back: neither in `torch.cuda.empty_cache` nor for an allocation that finds no
    other memory. The random generator of the device is left in the capture, too, so that every later
    call that draws random numbers there would raise RuntimeError.

    Args:
        graph: whose `capture_end` was called, on the current device.
        pool: the memory pool that it was captured with.
    """
    device = torch.cuda.current_device()
    with contextlib.suppress(RuntimeError):
        graph.reset()  # else a torch that ends it here would do so in the destructor, a second time
    with contextlib.suppress(RuntimeError):  # it was ended before
        torch._C._cuda_endAllocateToPool(device, pool)
    with contextlib.suppress(RuntimeError):  # the device is lost
        generator = torch.cuda.default_generators[device]
        generator.graphsafe_set_state(generator.clone_state())


def shared_bytes() -> int:
    """Bytes of shared memory that a program may have on all devices; without any, what an H200 has."""
    return _least("max_shared_mem", "shared_memory_per_block_optin", SHARED_BYTES)


def multiprocessors() -> int:
    """Multiprocessors that all devices have; without any, those of an H200."""
    return _least("multiprocessor_count", "multi_processor_count", MULTIPROCESSORS)


def _least(of_driver: str, of_torch: str, without_devices: int) -> int:
    """The least value of a property of devices, which Triton's driver and torch name so."""
    if _takes_metas:  # kernels are compiled for a device that need not be there
        driver: Any = triton.runtime.driver.active
        return int(driver.utils.get_device_properties(driver.get_current_device())[of_driver])
    if triton.knobs.runtime.interpret or not torch.cuda.is_available():
        return without_devices
    devices: list[Any] = [*map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))]
    return min(int(getattr(device, of_torch)) for device in devices)


def check_device(x: Tensor, **others: Tensor | None) -> None:
    """Raise InvalidInput unless all tensors live where `x` does."""
    device = x.device
    for name, t in others.items():
        if t is not None and t.device != device:
            raise InvalidInput(name, f"{name} must be on {device}, got {t.device}")


class Launch:
    """A launch with everything settled but its tensors, so that repeating it takes some 7 us.

    Triton's own launch finds out at every call which specialization of a kernel the arguments need;
    for our kernels that took 15 to 40 us. A plan depends on nothing but layouts, so the answer is
    always the same: it is looked up at the first call on a device, and the driver launches what was
    compiled from then on. Launch hooks, which profilers may set in Triton, therefore see the first
    call only.

    Args:
        kernel: a `triton.jit` function that takes its tensors first.
        grid: programs along up to three axes.
        arguments: all other arguments of the kernel by name, and options such as num_warps.
        element_types: for each tensor the Triton dtype to read it as, or None for its own.
        variant: the name of the variant that the plan chose; tests and logs use it. Without one it
            is the name of the kernel.
        words: how many words of 64 bits the kernel takes as its last tensor: see `with_words`.
        then: a launch on the same tensors that follows this one there.
    """

    __slots__ = (
        *("_by_driver", "_fixed", "arguments", "element_types"),
        *("grid", "kernel", "then", "variant", "words"),
    )

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: Mapping[str, Any],
        element_types: tuple[Any, ...] = (),
        variant: str = "",
        words: int = 0,
        then: Launch | None = None,
    ) -> None:
        self.kernel = kernel
        self.words = words
        self.then = then
        self.grid: tuple[int, int, int] = (*grid, 1, 1)[:3]  # type: ignore[assignment]
        self.arguments = arguments
        self.element_types = element_types
        self.variant = variant or str(kernel.fn.__name__)
        # The arguments behind the tensors, in the kernel's order.
        self._fixed = tuple(arguments[name] for name in kernel.arg_names if name in arguments)
        self._by_driver: dict[int, DriverLaunch] = {}  # by device

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on the current stream of the device of the first tensor.

        The tensors must lie as the layouts of the plan say: nothing checks it here.
        """
        assert tensors[0] is not None
        device = tensors[0].get_device()  # -1 is not a GPU
        if device >= 0 and device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):  # Triton launches on the current device
                return self(*tensors)
        by_driver = self._by_driver.get(device)
        if by_driver is None:
            return self.by_triton(*tensors)
        by_driver(tensors, torch._C._cuda_getCurrentRawStream(device))
        return None

    def with_words(self, *tensors: Tensor | None) -> None:
        """Launch on these tensors and the words that the kernel takes, and then what follows.

        The words are zeros, unless another launch follows, for which this one writes them.
        """
        x = tensors[0]
        assert x is not None
        words: list[Tensor] = []
        if self.words:
            make = x.new_zeros if self.then is None else x.new_empty
            words = [make(self.words, dtype=torch.int64)]
        self(*tensors, *words)
        if self.then is not None:
            self.then(*tensors, *words)

    def by_triton(self, *tensors: Tensor | None) -> None:
        """Launch as Triton does, which compiles if needed, and keep what was compiled.

        The device of the first tensor must be the current one if it is a GPU.
        """
        assert tensors[0] is not None
        device = tensors[0].get_device()
        operands = list(tensors)
        for i, element_type in enumerate(self.element_types):
            if element_type is not None:
                operands[i] = triton.reinterpret(operands[i], element_type)
        compiled = self.kernel[self.grid](*operands, **self.arguments)
        if device >= 0 and DriverLaunch.takes(compiled, self.grid):
            self._by_driver[device] = DriverLaunch(compiled, self.grid, tensors, self._fixed)
