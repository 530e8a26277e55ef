"""A compiled Triton kernel that the CUDA driver launches with arguments kept in C memory.

Triton's own launcher converts each argument of each launch from Python: tuples, sizes and strides,
which a plan has settled. Here they are converted once, and a launch only writes the addresses of
its tensors. A permute of [64, 48]: 6.5 us a launch, of which the driver takes 4.7; by Triton's
launcher 8.5 us (host of an H200, Triton 3.6).

The parameters of a kernel in the driver's order are those of its signature without constants,
tuples taken apart, and then two pointers to scratch memory, which our kernels do not use.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

WARP = 32
SLOT_BYTES = POINTER_BYTES = 8  # no argument is wider than a pointer
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_..., as cuda.h numbers it
SCRATCH = ("*i8", "*i8")  # pointers that stay null
# How `struct` names the types of Triton's signatures.
FORMATS = {
    "i1": "b",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u1": "B",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp32": "f",
    "fp64": "d",
}


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h, whose value is some integers."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("value", ctypes.c_uint * 16),
    )


class DriverLaunch:
    """Launches one compiled kernel on one device, with everything fixed but its tensors.

    Args:
        compiled: what Triton's launch returned, on the current device.
        grid: programs along three axes.
        tensors: of the first launch; which of them are None must not change.
        fixed: the arguments behind the tensors, in the kernel's order.
    """

    __slots__ = ("_addresses", "_arguments", "_config", "_kept", "_lock", "_slots")

    def __init__(
        self,
        compiled: Any,
        grid: tuple[int, int, int],
        tensors: Sequence[Tensor | None],
        fixed: Sequence[Any],
    ) -> None:
        signature = compiled.src.signature
        parameters = parameters_of(signature)
        values = list(passed(tuple(signature.values()), (*tensors, *fixed)))
        count = len(parameters)
        self._slots = (ctypes.c_uint64 * count)()
        self._addresses = [i for i, t in enumerate(values) if isinstance(t, Tensor)]
        for i, (kind, value) in enumerate(zip(parameters, values, strict=False)):
            if not isinstance(value, Tensor):
                struct.pack_into(FORMATS[kind], self._slots, SLOT_BYTES * i, value)
        first = ctypes.addressof(self._slots)
        params = (ctypes.c_void_p * count)(*(first + SLOT_BYTES * i for i in range(count)))
        metadata = compiled.metadata
        early = Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))
        self._config = Config(
            grid,
            (WARP * metadata.num_warps, 1, 1),
            metadata.shared,
            None,
            ctypes.addressof(early),
            int(metadata.launch_pdl),
        )
        self._kept = params, early, compiled  # the driver reads them, and runs the loaded binary
        self._arguments = (
            ctypes.addressof(self._config),
            compiled.function,
            ctypes.addressof(params),
            None,
        )
        self._lock = threading.Lock()  # of the memory above, until the driver has copied it

    @staticmethod
    def takes(compiled: Any, grid: tuple[int, int, int]) -> bool:
        """Whether such a kernel can be launched so: on a GPU, without clusters and scratch memory."""
        if compiled is None or not all(grid):  # the interpreter compiles nothing
            return False
        metadata = compiled.metadata
        scratch = metadata.global_scratch_size or metadata.profile_scratch_size
        together = metadata.launch_cooperative_grid or metadata.num_ctas != 1
        return not (scratch or together)

    def __call__(self, tensors: Sequence[Tensor | None], stream: int) -> None:
        """Launch on a stream of the device, which must be the current one.

        Raises:
            RuntimeError: what the driver refused, with "Triton Error [CUDA]" as Triton's launcher
                has it.
        """
        slots = self._slots
        given = [t.data_ptr() for t in tensors if t is not None]
        with self._lock:
            for i, address in zip(self._addresses, given, strict=True):
                slots[i] = address
            self._config.stream = stream
            error = driver().cuLaunchKernelEx(*self._arguments)
        if error:
            raise RuntimeError(f"Triton Error [CUDA]: {error_text(error)}")


def parameters_of(signature: Mapping[str, Any]) -> list[str]:
    """The types of a kernel's parameters, as Triton names them.

    Args:
        signature: of the source of a compiled kernel: the types of its arguments by name.
    """
    types = tuple(signature.values())
    return [*passed(types, types), *SCRATCH]


def passed(types: Sequence[Any], values: Sequence[Any]) -> Iterator[Any]:
    """The values that become parameters: no constants, and tuples taken apart."""
    for kind, value in zip(types, values, strict=True):
        if isinstance(kind, tuple):
            yield from passed(kind, value)
        elif kind != "constexpr":
            yield value


@functools.cache
def driver() -> Any:
    """The CUDA driver. A function of it that gets more than integers has its types set here."""
    found = ctypes.CDLL("libcuda.so.1")
    found.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
    found.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return found


def error_text(error: int) -> str:
    """What an error of the driver means."""
    text = ctypes.c_char_p()
    driver().cuGetErrorString(error, ctypes.byref(text))
    return (text.value or b"unknown error").decode()
