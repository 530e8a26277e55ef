"""Compile references in parallel processes before a benchmark, so that it only loads them.

The processes fill torch.compile's caches on the disk. Their choices between several configurations
of a kernel are deleted afterwards, because the processes disturb each other's times: the benchmark
chooses again, alone on the GPU.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path

LARGEST_BYTES = 512 << 20  # of a case: so many processes share the GPU's memory
LAST_SECONDS = 15.0  # for compilations that began before the end
COMPILED = "torch.compile"  # the implementation
CHOICES = "*.best_config"  # files of torch.compile with the configuration that was fastest

Work = tuple[str, str]  # the names of an op and of one of its cases


def compile_ahead(work: Sequence[Work], device: str, processes: int, seconds: float) -> int:
    """Compile the references of cases; returns how many were compiled within the seconds."""
    end = time.monotonic() + seconds
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # otherwise each process starts a pool
    compiled = 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        results = pool.imap_unordered(_compile, [(*names, device, end) for names in work])
        # A process that hangs or was killed ends no work. The pool is terminated with it.
        with contextlib.suppress(multiprocessing.TimeoutError, StopIteration):
            while True:
                compiled += results.next(max(0.0, end - time.monotonic()) + LAST_SECONDS)
    del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]
    _forget_choices()
    return compiled


def _compile(given: tuple[str, str, str, float]) -> bool:
    """Compile the reference of a case, unless the time is over or the case is too large."""
    op_name, case_name, device, end = given
    import torch

    from warpcall_kernels import ops
    from warpcall_kernels.measuring._implementations import find

    if time.monotonic() > end:  # the clock is the machine's
        return False
    op = ops()[op_name]
    case = next(c for c in (*op.cases, *op.sweep) if c.name == case_name and c.size == "large")
    params = op.check_params(case.params)
    try:
        inputs = case.tensors(device)
        if op.bytes_moved(**inputs, **params) > LARGEST_BYTES:
            return False
        with torch.no_grad():
            find(op, COMPILED).build(op, params)(**inputs)
    except Exception:  # noqa: BLE001  # the benchmark itself reports what does not compile
        return False
    if device != "cpu":
        torch.cuda.empty_cache()
    return True


def _forget_choices() -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    for file in Path(cache_dir()).rglob(CHOICES):
        file.unlink()
