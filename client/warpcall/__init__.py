"""Run GPU kernels on a Warpcall server.

    from warpcall import Client

    with Client("http://gpu-box:8000") as gpu:
        y = gpu.permute(x, dims=(2, 0, 1))

Public names: Client, StoredTensor and Program with their forms for asyncio (AsyncClient,
AsyncStoredTensor, AsyncProgram), Answer, and the errors of `warpcall.errors`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from warpcall.errors import (
    Busy,
    CallTimedOut,
    Forbidden,
    InvalidInput,
    JobFailed,
    KernelFailed,
    NodeGone,
    NotFound,
    OnOtherNode,
    Problem,
    TimedOut,
    TooLarge,
    TransportError,
    Unauthorized,
    Unavailable,
    UnsupportedMedia,
    WarpcallError,
)

if TYPE_CHECKING:
    from warpcall._answer import Answer
    from warpcall._async_client import AsyncClient
    from warpcall._client import Client
    from warpcall._program import AsyncProgram, Program
    from warpcall._tensors import AsyncStoredTensor, StoredTensor

__version__ = "0.2.0"  # of both distributions
__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncProgram",
    "AsyncStoredTensor",
    "Busy",
    "CallTimedOut",
    "Client",
    "Forbidden",
    "InvalidInput",
    "JobFailed",
    "KernelFailed",
    "NodeGone",
    "NotFound",
    "OnOtherNode",
    "Problem",
    "Program",
    "StoredTensor",
    "TimedOut",
    "TooLarge",
    "TransportError",
    "Unauthorized",
    "Unavailable",
    "UnsupportedMedia",
    "WarpcallError",
]


_LAZY = {
    "Answer": "_answer",
    "AsyncClient": "_async_client",
    "AsyncProgram": "_program",
    "AsyncStoredTensor": "_tensors",
    "Client": "_client",
    "Program": "_program",
    "StoredTensor": "_tensors",
}


def __getattr__(name: str) -> Any:
    """Import the clients at their first use.

    The server imports this package too, but needs only its errors and its wire format.
    """
    if name in _LAZY:
        module = importlib.import_module(f"warpcall.{_LAZY[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
