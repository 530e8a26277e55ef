"""Compiles kernels before they are used: `warpcall-server warm`, and beside the calls of a worker."""

from __future__ import annotations

import logging
import os
import re
import subprocess  # nosec B404
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from warpcall_service.processes import child

if TYPE_CHECKING:
    from warpcall_kernels.compile.warm import Warmed

REPORT_S = 0.2  # between two reports of how many kernels are compiled
LOG_S = 5.0  # between two lines of the log about it
LOWEST_PRIORITY = 19  # added to the priority of the process: calls and HTTP come first
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


class LaneWarmer:
    """Compiles the kernels of common calls beside the calls of a worker, and then loads them.

    A child process compiles them into Triton's cache: it runs at the lowest priority and does not
    use the GPU. Then this process loads them, one call's kernels at a time. The worker's own calls
    wait for at most one such step. A failure is logged and changes nothing for calls: a kernel that
    is not there is compiled at its first call.

    Args:
        device: the CUDA device's name, such as "cuda:0", which is the current device.
        capability: its compute capability, times ten.
        launching: held while kernels are loaded; whoever launches kernels must hold it.
        report: called with "compiling" or "loading" and two numbers, how much of it is done and how
            much there is, and at the end with an empty text.
    """

    def __init__(
        self,
        device: str,
        capability: int,
        launching: threading.Lock,
        report: Callable[[str, int, int], object],
    ) -> None:
        self._device = device
        self._capability = capability
        self._launching = launching
        self._report = report

    def start(self) -> None:
        """Begin, in a thread that ends with this process."""
        self._report("compiling", 0, 0)
        threading.Thread(target=self._warm, name="warming", daemon=True).start()

    def _warm(self) -> None:
        try:
            if self._compile():
                self._load()
        except Exception:
            log.exception("%s: kernels cannot be compiled ahead", self._device)
        finally:
            self._report("", 0, 0)

    def _compile(self) -> bool:
        """Run the child process, and return whether it ended by itself."""
        progress = _Progress(
            *(self._device, "%d of %d kernels are compiled", partial(self._report, "compiling"))
        )
        # The kernel kills the child when this thread ends, or the process. The parent of this
        # process kills the whole process group.
        child = subprocess.Popen(  # nosec B603
            [
                *(sys.executable, "-P", "-m", "warpcall_service.worker.warmup"),
                *(f"--parent={os.getpid()}", f"--capability={self._capability}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                done, _, count = line.decode().partition(" ")
                progress.note(int(done), int(count))
        status = child.wait()
        if status:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            log.error(
                "%s: the process that compiles kernels ahead ended with %s", self._device, how
            )
        return status == 0

    def _load(self) -> None:
        import torch

        from warpcall_kernels.compile import warm as _warm

        torch.cuda.set_device(self._device)  # of this thread
        calls = list(_warm.cases())
        began = time.monotonic()
        progress = _Progress(
            self._device,
            "the kernels of %d of %d calls are loaded",
            partial(self._report, "loading"),
        )
        failures: dict[str, None] = {}
        longest_s = 0.0
        for done, (op, case) in enumerate(calls, 1):
            with self._launching:
                begun = time.monotonic()
                failures |= dict.fromkeys(_warm.load_call(op, case))
                took_s = time.monotonic() - begun
            longest_s = max(longest_s, took_s)
            progress.note(done, len(calls))
            time.sleep(took_s)  # for calls that wait
        for failure in failures:
            log.error("cannot load ahead: %s", failure)
        log.info(
            "%s is warm: the kernels of %d calls were loaded in %.1f s, in steps of %.3f s at most",
            *(self._device, len(calls), time.monotonic() - began, longest_s),
        )


class _Progress:
    """Tells a lane now and then, and its log less often, how much is done.

    Args:
        text: says in the log how many of how many are done.
    """

    def __init__(self, device: str, text: str, report: Callable[[int, int], object]) -> None:
        self._device, self._text = device, text
        self._tell = report
        self._began = self._reported = self._logged = time.monotonic()

    def note(self, done: int, count: int) -> None:
        """So many of so many are done."""
        now = time.monotonic()
        if now > self._reported + REPORT_S or done == count:
            self._reported = now
            self._tell(done, count)
        if now > self._logged + LOG_S:
            self._logged = now
            left_s = (now - self._began) / done * (count - done)
            said = self._text % (done, count)
            log.info("%s: %s, %.0f s are left", self._device, said, left_s)


def main() -> None:
    """Compile all kernels that Triton's cache lacks, and write how many are done to stdout."""
    args = child.start(capability=int)
    os.nice(LOWEST_PRIORITY)
    from warpcall_kernels.compile import warm as _warm

    began = time.monotonic()
    done = _warm.warm(
        args.capability,
        on_progress=lambda done, count: print(done, count, flush=True),  # noqa: T201  # for _compile
    )
    for failure in done.failed:
        log.error("cannot compile ahead: %s", failure)
    log.info("compiled ahead: %s", _summary(done, time.monotonic() - began))


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


if __name__ == "__main__":
    main()
