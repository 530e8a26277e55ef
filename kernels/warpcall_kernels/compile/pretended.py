"""Lets code that asks for a GPU run on tensors of the CPU, in a process without one.

Tensors say that they are on "cuda:0", and what is allocated there is allocated on the CPU. Code that
checks `x.is_cuda`, allocates its outputs beside its inputs, or asks for the number of
multiprocessors then reaches its launches. Streams and events can be made and do nothing: all work is
done in the order of its calls. Nothing else that needs a real GPU works; a graph can be made, such as
for later, and neither captured nor replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from warpcall_kernels.compile.architectures import REGISTERS, THREADS, Architecture

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
MEMORY_BYTES, L2_BYTES = 40 << 30, 40 << 20
SHARED_BYTES = 48 << 10  # of a block that asks for no more
ANSWERS: Mapping[Any, Any] = {
    torch.Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: False,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: GPU,
    torch.Tensor.get_device: 0,
}
MOVES = (torch.Tensor.cuda, torch.Tensor.pin_memory)  # what leaves a tensor where it is


class Event:
    """An event of a stream on which everything is done at once."""

    cuda_event, device = 0, GPU

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take the arguments of torch.cuda.Event."""

    def record(self, stream: Any = None) -> None:
        """Do nothing, as `wait` and `synchronize`."""

    wait = synchronize = record

    def query(self) -> bool:
        """Whether the work before it is done."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to another event: 1, since times of a GPU that is not there are unknown."""
        return 1.0


class Stream:
    """A stream on which everything is done at once."""

    cuda_stream, device_index, device, priority = 0, 0, GPU, 0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take the arguments of torch.cuda.Stream."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self, other: Any = None) -> None:
        """Do nothing, as `wait_stream` and `wait_event`."""

    wait_stream = wait_event = synchronize

    def query(self) -> bool:
        """Whether its work is done."""
        return True

    def record_event(self, event: Any = None) -> Any:
        """An event behind its work."""
        return event or Event()


class CUDAGraph:
    """A graph that can be made, and neither captured nor replayed."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} of a CUDAGraph needs a GPU, and there is none")


def _capture(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a CUDAGraph cannot be captured: it needs a GPU, and there is none")


class Generator(torch.Generator):
    """A generator of random numbers on the CPU, whatever device it is asked for."""

    def __new__(cls, device: Any = None) -> Self:
        """Take the argument of torch.Generator."""
        return super().__new__(cls)


# What stands in `torch.cuda` in place of its own classes.
CLASSES = {
    "Event": Event,
    "Stream": Stream,
    "ExternalStream": Stream,
    "CUDAGraph": CUDAGraph,
    "graph": _capture,
}


class OnCpu(TorchFunctionMode):
    """Answers for tensors as if they were on a GPU, and allocates on the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in ANSWERS:
            return ANSWERS[func]
        if func in MOVES:
            return args[0]
        takes_names = func is torch.Tensor.to
        moved = {name: _moved(value, name == "device") for name, value in (kwargs or {}).items()}
        moved.pop("pin_memory", None)
        return func(*(_moved(value, takes_names) for value in args), **moved)


def _moved(value: Any, may_be_name: bool) -> Any:
    """The CPU in place of a GPU."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    named = may_be_name and isinstance(value, str) and value.partition(":")[0] == "cuda"
    return CPU if named or (may_be_name and type(value) is int) else value


@contextmanager
def pretending(target: Architecture, mode: OnCpu | None = None) -> Iterator[None]:
    """A context in which code sees a GPU of an architecture.

    Args:
        mode: answers for tensors.
    """
    properties = SimpleNamespace(
        name=target.device,
        major=target.capability // 10,
        minor=target.capability % 10,
        multi_processor_count=target.multiprocessors,
        total_memory=MEMORY_BYTES,
        warp_size=THREADS,
        regs_per_multiprocessor=REGISTERS,
        max_threads_per_multi_processor=target.warps * THREADS,
        is_integrated=False,
        is_multi_gpu_board=False,
        L2_cache_size=L2_BYTES,
        shared_memory_per_block=SHARED_BYTES,
        shared_memory_per_block_optin=target.block_shared_bytes,
        shared_memory_per_multiprocessor=target.shared_bytes,
    )
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": divmod(target.capability, 10),
        "get_device_name": target.device,
        "get_device_properties": properties,
        "is_bf16_supported": True,
        "synchronize": None,
        "current_stream": Stream(),
        "default_stream": Stream(),
        "stream": nullcontext(),
        "set_stream": None,
        "is_current_stream_capturing": False,
        "device": nullcontext(),
        "device_of": nullcontext(),
        "set_device": None,
        "init": None,
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "can_device_access_peer": False,
        "reset_peak_memory_stats": None,
        "set_per_process_memory_fraction": None,
        "ipc_collect": None,
    }
    functions = {name: _answering(answer) for name, answer in answers.items()}
    before = {name: getattr(torch.cuda, name) for name in (*functions, *CLASSES)}
    generator = torch.Generator
    for name, replacement in (functions | CLASSES).items():
        setattr(torch.cuda, name, replacement)
    torch.Generator = Generator  # type: ignore[misc]
    try:
        with mode or OnCpu():
            yield
    finally:
        torch.Generator = generator  # type: ignore[misc]
        for name, one in before.items():
            setattr(torch.cuda, name, one)


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer
