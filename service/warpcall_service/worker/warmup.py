"""Compiles kernels before they are used: `warpcall-server warm`, and the start of a worker."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from warpcall_kernels.compile.warm import Warmed

REPORT_S = 0.2  # between two reports of how many kernels are compiled
LOG_S = 5.0  # between two lines of the log about it
OLDEST = 80  # compute capability, times ten: bfloat16 needs it

log = logging.getLogger("warpcall.warm")
log.setLevel(logging.INFO)  # a worker's log has warnings only, apart from this


def warm(
    gpu: Annotated[
        str,
        typer.Option(
            help="GPU to compile for: present (this machine's first GPU), or a kind such as sm_90."
        ),
    ] = "present",
    threads: Annotated[
        int,
        typer.Option(
            min=0, max=1024, help="Kernels to compile at a time; 0 means one for each CPU."
        ),
    ] = 0,
) -> None:
    """Compile the kernels of all common calls into Triton's cache, TRITON_CACHE_DIR."""
    try:
        capability = _capability(gpu)
    except ValueError as error:
        typer.echo(f"warpcall-server: {error}", err=True)
        raise typer.Exit(2) from None
    from warpcall_kernels.compile import warm as _warm

    began = time.monotonic()
    done = _warm.warm(capability, threads)
    for failure in done.failed:
        typer.echo(failure, err=True)
    sys.stdout.write(f"{_summary(done, time.monotonic() - began)}\n")
    if done.failed:
        raise typer.Exit(1)


def warm_lane(device: str, report: Callable[[int, int], None]) -> None:
    """Compile and load the kernels for the current device; failures are only logged.

    Args:
        report: called now and then with how many kernels are compiled, and how many there are.
    """
    from warpcall_kernels.compile import warm as _warm

    began = reported = logged = time.monotonic()

    def on_progress(done: int, count: int) -> None:
        nonlocal reported, logged
        now = time.monotonic()
        if now > reported + REPORT_S or done == count:
            reported = now
            report(done, count)
        if now > logged + LOG_S:
            logged = now
            left_s = (now - began) / done * (count - done)
            log.info(
                "%s: %d of %d kernels are compiled, %.0f s are left", device, done, count, left_s
            )

    done = _warm.warm(on_progress=on_progress)
    for failure in done.failed:
        log.error("cannot compile ahead: %s", failure)
    log.info("%s is warm: %s", device, _summary(done, time.monotonic() - began))


def _capability(gpu: str) -> int | None:
    """The compute capability, times ten, that `gpu` names; None for the present device."""
    import torch

    if gpu == "present":
        if not torch.cuda.is_available():
            raise ValueError("there is no GPU here; name the kind to compile for: --gpu sm_90")
        return None
    named = re.fullmatch(r"sm_(\d{2,3})", gpu)
    if named is None or int(named[1]) < OLDEST:
        raise ValueError(f"--gpu must be present, or sm_{OLDEST} or newer, got {gpu!r:.60}")
    return int(named[1])


def _summary(done: Warmed, seconds: float) -> str:
    return f"{done.kernels} kernels, {done.compiled} of them compiled now, in {seconds:.1f} s"
