"""Reads and writes memory of another process, without its help.

The process that runs uploaded code says where its inputs and outputs lie. The process that measures
writes the inputs and reads the outputs there itself, so that no code of users stands between a
result and its check. On a GPU it opens the other process's allocation by CUDA IPC; on a CPU it uses
`process_vm_readv` and `process_vm_writev`, which the kernel allows for a process of the same account.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

HANDLE_BYTES = 64  # of a CUIpcMemHandle
LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
MOST_AT_ONCE = 1 << 30  # bytes that one system call moves

Address = Mapping[str, Any]


class Unreachable(Exception):
    """Memory of the other process cannot be reached. The message says why."""


def address_of(t: Tensor) -> dict[str, Any]:
    """Where a tensor's first element lies, for a `Window` of another process.

    Raises:
        Unreachable: CUDA cannot share this memory.
    """
    if t.device.type != "cuda" or not t.numel():
        return {"address": t.data_ptr()}
    driver = _driver()
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), (ctypes.c_char * HANDLE_BYTES)()
    pointer = ctypes.c_uint64(t.data_ptr())
    if driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer):
        raise Unreachable("its memory is not known to CUDA")
    if driver.cuIpcGetMemHandle(ctypes.byref(handle), base):
        raise Unreachable("its memory was not allocated by cudaMalloc, and cannot be shared")
    return {"address": t.data_ptr() - base.value, "handle": bytes(handle).hex()}


class Window:
    """Memory of one other process.

    Args:
        pid: of the process, as this process sees it.
        device: on which the memory is.
    """

    def __init__(self, pid: int, device: torch.device) -> None:
        self._pid = pid
        self._device = device
        self._opened: dict[str, tuple[int, int]] = {}  # address and size, by handle

    def read(self, address: Address, nbytes: int) -> Tensor:
        """The bytes at an address: a copy on a CPU, the memory itself on a GPU.

        Raises:
            Unreachable: there is no such memory.
        """
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8, device=self._device)
        if self._device.type == "cuda":
            return self._mapped(address, nbytes)
        found = torch.empty(nbytes, dtype=torch.uint8)
        self._move("process_vm_readv", found, address)
        return found

    def write(self, address: Address, content: Tensor) -> None:
        """Write bytes to an address, and wait until they are there.

        Raises:
            Unreachable: there is no such memory.
        """
        if not content.numel():
            return
        if self._device.type == "cuda":
            self._mapped(address, content.numel()).copy_(content)
            torch.cuda.current_stream(self._device).synchronize()
        else:
            self._move("process_vm_writev", content, address)

    def close(self) -> None:
        """Close what was opened."""
        for base, _ in self._opened.values():
            _driver().cuIpcCloseMemHandle(ctypes.c_uint64(base))
        self._opened.clear()

    def _mapped(self, address: Address, nbytes: int) -> Tensor:
        base, size = self._open(str(address.get("handle", "")))
        offset = address["address"]
        if not 0 <= offset <= size - nbytes:
            raise Unreachable("it lies outside of the allocation that it names")
        return torch.as_tensor(_Bytes(base + offset, nbytes), device=self._device)

    def _open(self, text: str) -> tuple[int, int]:
        if text not in self._opened:
            if len(text) != 2 * HANDLE_BYTES:
                raise Unreachable("it has no handle of its memory")
            driver = _driver()
            handle = _Handle()
            try:
                handle.reserved = bytes.fromhex(text)
            except ValueError:
                raise Unreachable("it has no handle of its memory") from None
            base, begin, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
            if code := driver.cuIpcOpenMemHandle_v2(ctypes.byref(base), handle, LAZY_PEER_ACCESS):
                raise Unreachable(f"CUDA cannot open its memory (error {code})")
            driver.cuMemGetAddressRange_v2(ctypes.byref(begin), ctypes.byref(size), base)
            self._opened[text] = base.value, size.value
        return self._opened[text]

    def _move(self, function: str, ours: Tensor, address: Address) -> None:
        assert ours.is_contiguous()
        libc = ctypes.CDLL(None, use_errno=True)
        move = getattr(libc, function)
        move.restype = ctypes.c_ssize_t
        done, total = 0, ours.numel() * ours.element_size()
        while done < total:
            count = min(total - done, MOST_AT_ONCE)
            local = _Vector(ours.data_ptr() + done, count)
            remote = _Vector(address["address"] + done, count)
            moved = move(
                ctypes.c_int(self._pid),
                ctypes.byref(local),
                ctypes.c_ulong(1),
                ctypes.byref(remote),
                ctypes.c_ulong(1),
                ctypes.c_ulong(0),
            )
            if moved <= 0:
                reason = os.strerror(ctypes.get_errno())
                raise Unreachable(f"its memory cannot be reached: {reason}")
            done += moved


class _Vector(ctypes.Structure):
    """An `iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class _Handle(ctypes.Structure):
    """A `CUipcMemHandle`, which is passed by value. Its bytes may be zeros, so it is no c_char."""

    _fields_ = (("_bytes", ctypes.c_ubyte * HANDLE_BYTES),)

    @property
    def reserved(self) -> bytes:
        return bytes(self._bytes)

    @reserved.setter
    def reserved(self, content: bytes) -> None:
        ctypes.memmove(self._bytes, content, HANDLE_BYTES)


class _Bytes:
    """Bytes on the GPU, which torch takes without a copy."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
