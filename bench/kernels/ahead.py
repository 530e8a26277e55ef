"""Compile references in parallel processes before a benchmark, so that it only loads them.

The processes fill torch.compile's caches on the disk. Their choices between several configurations
of a kernel are deleted afterwards, because the processes disturb each other's times: the benchmark
chooses again, alone on the GPU.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path

LARGEST_BYTES = 512 << 20  # of a case: so many processes share the GPU's memory
CHOICES = "*.best_config"  # files of torch.compile with the configuration that was fastest

Work = tuple[str, str]  # the names of an op and of one of its cases


def compile_ahead(work: Sequence[Work], device: str, processes: int, seconds: float) -> int:
    """Compile the references of cases; returns how many were compiled within the seconds."""
    end = time.monotonic() + seconds
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # otherwise each process starts a pool
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        running = [pool.submit(_compile, *names, device, end) for names in work]
        compiled = sum(future.result() for future in running if not future.exception())
    del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]
    _forget_choices()
    return compiled


def _compile(op_name: str, case_name: str, device: str, end: float) -> bool:
    import torch

    from warpcall_kernels import ops
    from warpcall_kernels.measuring._implementations import find

    if time.monotonic() > end:  # the clock is the machine's
        return False
    op = ops()[op_name]
    case = next(c for c in (*op.cases, *op.sweep) if c.name == case_name and c.size == "large")
    inputs = case.tensors(device)
    params = op.check_params(case.params)
    if op.bytes_moved(**inputs, **params) > LARGEST_BYTES:
        return False
    with torch.no_grad():
        find(op, "torch.compile").build(op, params)(**inputs)
    if device != "cpu":
        torch.cuda.empty_cache()
    return True


def _forget_choices() -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    for file in Path(cache_dir()).rglob(CHOICES):
        file.unlink()
