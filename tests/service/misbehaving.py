"""Implementations that no operator would want, for the server's `job_modules`."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from warpcall_kernels import Op
from warpcall_kernels.measuring import Implementation

Function = Callable[..., Any]
FOR_EVER_S = 3600.0


def hang(op: Op, params: Mapping[str, Any]) -> Function:
    """Never returns, already when its results are checked."""

    def function(**inputs: Any) -> Any:
        time.sleep(FOR_EVER_S)

    return function


def wait(op: Op, params: Mapping[str, Any]) -> Function:
    """Waits, with rows of 13, until there is the file that CONTINUE_FILE names."""

    def function(**inputs: Any) -> Any:
        file = Path(os.environ["CONTINUE_FILE"])
        while inputs["x"].shape[-1] == 13 and not file.exists():
            time.sleep(0.05)
        return op.reference(**inputs, **params).contiguous()

    return function


def hang_when_timed(op: Op, params: Mapping[str, Any]) -> Function:
    """Is right, and hangs once it is alone on the device; deaf to SIGTERM."""
    calls = 0
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def function(**inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 20:
            while True:
                time.sleep(FOR_EVER_S)
        return op.reference(**inputs, **params).contiguous()

    return function


def allocate(op: Op, params: Mapping[str, Any]) -> Function:
    """Takes memory without end."""

    def function(**inputs: Any) -> Any:
        kept = []
        while True:
            kept.append(torch.ones(16 << 20))

    return function


def allocate_in_forks(op: Op, params: Mapping[str, Any]) -> Function:
    """Takes memory in processes of which each stays within its limit."""

    def function(**inputs: Any) -> Any:
        for _ in range(16):
            if not os.fork():
                # At once: page by page, a busy machine may take longer than the job may be quiet.
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
                kept = mmap.mmap(-1, 100 << 20, flags)
                time.sleep(FOR_EVER_S + len(kept))
        time.sleep(FOR_EVER_S)

    return function


def leave(op: Op, params: Mapping[str, Any]) -> Function:
    """Ends the process."""

    def function(**inputs: Any) -> Any:
        os._exit(3)

    return function


def crash(op: Op, params: Mapping[str, Any]) -> Function:
    """Reads where nothing is."""

    def function(**inputs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)

    return function


def fork(op: Op, params: Mapping[str, Any]) -> Function:
    """Leaves processes behind that have nothing to do with it any more, and is right."""

    def function(**inputs: Any) -> Any:
        if not function.forked:  # type: ignore[attr-defined]
            function.forked = True  # type: ignore[attr-defined]
            if not os.fork():
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if not os.fork():
                    os.execv("/bin/sleep", ["sleep", str(FOR_EVER_S)])
                os._exit(0)
        return op.reference(**inputs, **params).contiguous()

    function.forked = False  # type: ignore[attr-defined]
    return function


def wrong(op: Op, params: Mapping[str, Any]) -> Function:
    """Gives zeros."""

    def function(**inputs: Any) -> Any:
        return torch.zeros_like(op.reference(**inputs, **params).contiguous())

    return function


def fail(op: Op, params: Mapping[str, Any]) -> Function:
    """Raises."""

    def function(**inputs: Any) -> Any:
        raise ValueError("not today")

    return function


def refuse(op: Op, params: Mapping[str, Any]) -> Function:
    """Cannot be compiled."""

    def function(**inputs: Any) -> Any:
        raise torch._dynamo.exc.TorchDynamoException("no such thing")

    return function


def illegal(op: Op, params: Mapping[str, Any]) -> Function:
    """Writes where the device has no memory: a CUDA error that sticks."""

    def function(**inputs: Any) -> Any:
        (x,) = inputs.values()
        _write_far_away[(1,)](x, 1 << 45)
        torch.cuda.synchronize()
        return x

    return function


@triton.jit
def _write_far_away(pointer, offset):  # type: ignore[no-untyped-def]
    tl.store(pointer + offset, 0)


def assert_on_the_device(op: Op, params: Mapping[str, Any]) -> Function:
    """Takes an element that is not there, which torch's kernel asserts: it sticks just as well."""

    def function(**inputs: Any) -> Any:
        x = torch.zeros(4, device=next(iter(inputs.values())).device)
        result = x[torch.tensor([1 << 40], device=x.device)]
        torch.cuda.synchronize()
        return result

    return function


def allocate_on_the_device(op: Op, params: Mapping[str, Any]) -> Function:
    """Takes the device's memory without end."""

    def function(**inputs: Any) -> Any:
        kept = []
        while True:
            kept.append(torch.ones(1 << 30, device=next(iter(inputs.values())).device))

    return function


def spin(op: Op, params: Mapping[str, Any]) -> Function:
    """Is right, and keeps the device busy for ever once it is alone there."""
    calls = 0

    def function(**inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 20:
            torch.cuda._sleep(1 << 45)  # type: ignore[no-untyped-call]  # torch has no types here
        return op.reference(**inputs, **params).contiguous()

    return function


IMPLEMENTATIONS = tuple(
    Implementation(build.__name__.replace("_", "-"), Path(__file__).name, build, ("permute",))
    for build in (
        hang,
        wait,
        hang_when_timed,
        allocate,
        allocate_in_forks,
        leave,
        crash,
        fork,
        wrong,
        fail,
        refuse,
        illegal,
        assert_on_the_device,
        allocate_on_the_device,
        spin,
    )
)
