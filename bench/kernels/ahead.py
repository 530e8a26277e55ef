"""Compile kernels and references in parallel processes before a benchmark, which then loads them.

The processes fill the caches of Triton and torch.compile on the disk. What torch.compile chose
between several configurations of a kernel is deleted afterwards, because the processes disturb each
other's times: the benchmark chooses again, alone on the GPU.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LARGEST_BYTES = 512 << 20  # of a case: so many processes share the GPU's memory
LAST_SECONDS = 15.0  # for compilations that began before the end
COMPILED = "torch.compile"  # the implementation
CHOICES = "*.best_config"  # files of torch.compile with the configuration that was fastest


class Work(NamedTuple):
    """A case whose kernels are compiled, by the names of its op and of the case itself.

    Args:
        reference: whether its reference is compiled, too.
    """

    op: str
    case: str
    reference: bool


def compile_ahead(work: Sequence[Work], device: str, processes: int, seconds: float) -> set[Work]:
    """Compile for cases; returns those that were finished within the seconds."""
    end = time.monotonic() + seconds
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # otherwise each process starts a pool
    compiled = set()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        results = pool.imap_unordered(_compile, [(one, device, end) for one in work])
        # A process that hangs or was killed ends no work. The pool is terminated with it.
        with contextlib.suppress(multiprocessing.TimeoutError, StopIteration):
            while True:
                one = results.next(max(0.0, end - time.monotonic()) + LAST_SECONDS)
                if one is not None:
                    compiled.add(one)
    del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]
    _forget_choices()
    return compiled


def _compile(given: tuple[Work, str, float]) -> Work | None:
    """Compile for a case, unless the time is over or the case is too large."""
    work, device, end = given
    import torch

    from warpcall_kernels import ops
    from warpcall_kernels.measuring._implementations import find

    if time.monotonic() > end:  # the clock is the machine's
        return None
    op = ops()[work.op]
    case = next(c for c in (*op.cases, *op.sweep) if c.name == work.case and c.size == "large")
    params = op.check_params(case.params)
    try:
        inputs = case.tensors(device)
        if op.bytes_moved(**inputs, **params) > LARGEST_BYTES:
            return None
        with torch.no_grad():
            op.function(**inputs, **params)
            if work.reference:
                find(op, COMPILED).build(op, params)(**inputs)
    except Exception:  # noqa: BLE001  # the benchmark itself reports what does not compile
        return None
    if device != "cpu":
        torch.cuda.empty_cache()
    return work


def _forget_choices() -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    for file in Path(cache_dir()).rglob(CHOICES):
        file.unlink()
