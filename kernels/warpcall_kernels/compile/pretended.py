"""Lets code that asks for a GPU run on tensors of the CPU, in a process without one.

Tensors say that they are on "cuda:0", and what is allocated there is allocated on the CPU. Code that
checks `x.is_cuda`, allocates its outputs beside its inputs, or asks for the number of
multiprocessors then reaches its launches. Nothing that needs a real GPU works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from warpcall_kernels.compile.architectures import REGISTERS, THREADS, Architecture

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
MEMORY_BYTES = 40 << 30
ANSWERS: Mapping[Any, Any] = {
    torch.Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: False,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: GPU,
    torch.Tensor.get_device: 0,
}


class OnCpu(TorchFunctionMode):
    """Answers for tensors as if they were on a GPU, and allocates on the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in ANSWERS:
            return ANSWERS[func]
        if func is torch.Tensor.cuda:
            return args[0]
        takes_names = func is torch.Tensor.to
        moved = {name: _moved(value, name == "device") for name, value in (kwargs or {}).items()}
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
        "current_stream": SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
        "device": nullcontext(),
        "device_of": nullcontext(),
    }
    before = {name: getattr(torch.cuda, name) for name in answers}
    for name, answer in answers.items():
        setattr(torch.cuda, name, _answering(answer))
    try:
        with mode or OnCpu():
            yield
    finally:
        for name, function in before.items():
            setattr(torch.cuda, name, function)


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer
