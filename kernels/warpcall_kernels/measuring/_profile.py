"""Profiles one implementation in one case: what torch records of some calls, which nobody times."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from warpcall_kernels.execution.check import draw
from warpcall_kernels.execution.context import on_device, parse_device, same_arithmetic
from warpcall_kernels.execution.failures import first_line
from warpcall_kernels.execution.implementations import LIMIT, find
from warpcall_kernels.execution.inputs import copy_source
from warpcall_kernels.execution.spec import JobCase
from warpcall_kernels.measuring._blocks import Lease

CALLS = 3  # that are recorded
WARM_CALLS = 2  # before them: the first one compiles
LONG_S = 1.0  # of a call, from which on one is recorded


class ProfileFailed(Exception):
    """There is no profile. The message says why, for readers."""


def trace(
    case: JobCase,
    implementation: str,
    device: torch.device | str,
    *,
    most_bytes: int,
    seed: int = 0,
    lease: Lease = contextlib.nullcontext,
) -> bytes:
    """Call an implementation under torch's profiler, and return the trace.

    Args:
        most_bytes: the largest trace.
        lease: entered for the calls that are recorded.

    Returns:
        A Chrome trace (JSON), which Perfetto shows.

    Raises:
        ProfileFailed: the implementation raised an exception, or the trace is too large.
        InvalidInput: there is no such device.
    """
    on = parse_device(device)
    activities = [ProfilerActivity.CPU]
    if on.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    new_recorder = functools.partial(
        torch_profile, activities=activities, record_shapes=True, acc_events=True
    )
    with on_device(on), same_arithmetic(), torch.no_grad():
        try:
            call = prepared(case, implementation, on, seed)
            took_s = [_timed(call, on) for _ in range(WARM_CALLS)][-1]
            # A process's first profile imports hundreds of modules: not while the lease is held.
            with new_recorder(), record_function("prepares the next profile"):
                pass
            with lease(), new_recorder() as recorded:
                for number in range(1 if took_s > LONG_S else CALLS):
                    with record_function(f"call {number} of {implementation}"):
                        _timed(call, on)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # code of others may raise anything
            raise ProfileFailed(f"it raised {first_line(error)}") from error
        with tempfile.TemporaryDirectory(prefix="warpcall-trace-") as folder:
            file = Path(folder) / "trace.json"
            recorded.export_chrome_trace(str(file))
            nbytes = file.stat().st_size
            if nbytes > most_bytes:
                raise ProfileFailed(
                    f"its trace has {nbytes} bytes, at most {most_bytes} are kept; profile a "
                    "smaller case"
                )
            return file.read_bytes()


def prepared(
    case: JobCase, implementation: str, device: torch.device, seed: int
) -> Callable[[], object]:
    """A function that calls an implementation with inputs of the case, drawn from a seed.

    Raises:
        InvalidInput: there is no such implementation.
    """
    inputs = draw(case.inputs, seed, device)
    if implementation == LIMIT:
        source: Tensor = copy_source(case.op.bytes_moved(**inputs, **case.params), device)
        return source.clone
    found = find(case.op, implementation)
    function = found.build(case.op, case.params)
    return lambda: function(**inputs)


def _timed(call: Callable[[], object], device: torch.device) -> float:
    begin = time.monotonic()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic() - begin
