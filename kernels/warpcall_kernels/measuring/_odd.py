"""Checks an uploaded implementation in the odd cases of its op, for a bounded time, and counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from warpcall_kernels.execution.context import parse_device
from warpcall_kernels.execution.failures import class_of
from warpcall_kernels.execution.implementations import register, remote_implementation
from warpcall_kernels.execution.inputs import layout_of
from warpcall_kernels.execution.process import Deadlines, RemoteFailed, RemoteProcess
from warpcall_kernels.execution.remote import described
from warpcall_kernels.execution.spec import JobCase
from warpcall_kernels.measuring._measure import measure
from warpcall_kernels.measuring._precision import PRECISIONS
from warpcall_kernels.op.declaration import Op
from warpcall_kernels.op.odd_cases import LONG_IF_SMALL, odd_cases

ODD_S = 10.0  # after which no further case begins; counted from the first case on
HANG_S = 4.0  # a call that takes longer, and longer than SLOWER cases before it, hangs
SLOWER = 3.0
MOST_STARTS = 2  # of the process: one that ends again would end in most cases
PREPARE_S = 5.0  # of compiling for all cases side by side, before the first one
MOST_ELEMENTS_ON_CPU = 4096  # of the inputs of a case, so that none is much slower than others
MAX_KEY_CHARS = 500
MAX_REASON_CHARS = 500
COUNTS = {  # the count that a status adds to; "timeout" depends on what was allowed
    "ok": "right",
    "wrong_result": "wrong",
    "crashed": "failed",
    "cuda_error": "failed",
    "error": "raised",
    "compile_error": "raised",
}


@dataclass
class OddCases:
    """What was found in the odd cases of an op.

    Args:
        right, wrong: cases with a right and with a wrong result.
        failed: cases in which a call crashed, hung, or made the device fail.
        raised: cases in which the function raised an exception, so that it returned no result.
        not_checked: cases for which there was no time or no memory, or which need a GPU.
        first_case, first_reason: the first case that was wrong or failed, and why.
    """

    right: int = 0
    wrong: int = 0
    failed: int = 0
    raised: int = 0
    not_checked: int = 0
    first_case: str | None = None
    first_reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

    def add(self, count: str, case: str, reason: str | None) -> None:
        """Add one case to a count."""
        setattr(self, count, getattr(self, count) + 1)
        if count in ("wrong", "failed") and self.first_case is None:
            self.first_case = case[:MAX_KEY_CHARS]
            self.first_reason = (reason or "")[:MAX_REASON_CHARS]


def check_odd_cases(
    op: Op,
    name: str,
    process: RemoteProcess,
    device: torch.device | str,
    deadlines: Deadlines,
    progress: Callable[[], None] = lambda: None,
    at_once: int = 1,
) -> OddCases | None:
    """Check an uploaded implementation in the odd cases of its op; nothing is timed.

    On a CPU only some small cases are checked, because Triton's interpreter is slow. A process that
    has ended is started again once. Threads may check several
    implementations side by side, all of them within one `same_arithmetic`.

    Args:
        name: of the implementation.
        process: of the upload. It is ended afterwards.
        deadlines: of the import of its source. Calls have shorter ones.
        progress: called before each case.
        at_once: how many implementations are checked side by side, and share the device's memory.

    Returns:
        What was found; None if the process did not start or import the source, or if this process
        cannot use the device any more.
    """
    on = parse_device(device)
    try:
        return _Check(op, f"odd cases of {name}", process, on, deadlines, progress, at_once).run()
    except RemoteFailed:
        return None
    finally:
        process.end()


class _Check:
    def __init__(
        self,
        op: Op,
        name: str,
        process: RemoteProcess,
        device: torch.device,
        deadlines: Deadlines,
        progress: Callable[[], None],
        at_once: int,
    ) -> None:
        self._op = op
        self._name = name
        self._process = process
        self._device = device
        self._deadlines = deadlines
        self._progress = progress
        self._at_once = at_once
        self._found = OddCases()
        self._slowest_s = 0.0  # of the cases whose calls have returned
        self._starts = 1
        self._until = math.inf

    def run(self) -> OddCases | None:
        register(remote_implementation(self._name, self._op.name, self._process))
        chosen, number = self._cases()
        self._process.begin(self._deadlines)
        self._process.prepare([*map(_described, chosen)], PREPARE_S)
        self._until = time.monotonic() + ODD_S
        for begun, case in enumerate(chosen):
            if self._left_s <= 0 or not self._is_started():
                self._found.not_checked += len(chosen) - begun
                break
            self._progress()
            if not self._check(case):
                return None
        self._found.not_checked += number - len(chosen)
        return self._found

    @property
    def _left_s(self) -> float:
        return self._until - time.monotonic()

    def _cases(self) -> tuple[list[JobCase], int]:
        """The cases to check, and how many there are together with those that are left out."""
        small = self._device.type == "cpu"
        found: dict[str, JobCase] = {}
        for case in odd_cases(self._op, small=small):
            one = JobCase(self._op, case.inputs, self._op.check_params(case.params))
            found[one.key] = one
        if small:
            few = [one for one in found.values() if _elements(one) <= MOST_ELEMENTS_ON_CPU]
            return _by_new_features(few, only_new=True), len(found)
        room = torch.cuda.mem_get_info(self._device)[0] / 2 / self._at_once
        fitting = [one for one in found.values() if one.device_bytes <= room]
        return _by_new_features(fitting, only_new=False), len(found)

    def _is_started(self) -> bool:
        """Start the process again if it has ended; whether that was possible."""
        if not self._process.runs:
            self._starts += 1
            if self._starts > MOST_STARTS:
                return False
        try:
            self._process.begin(self._deadlines)
        except RemoteFailed:
            return False
        return self._left_s > 0

    def _check(self, case: JobCase) -> bool:
        """Check one case; False if this process cannot use the device any more."""
        # Nothing is known before the first case ends: a call may compile for a long time.
        wanted_s = max(HANG_S, SLOWER * self._slowest_s) if self._slowest_s else ODD_S
        limit_s = min(wanted_s, self._left_s)
        deadlines = Deadlines(
            min(HANG_S, limit_s, self._deadlines.call_s), min(limit_s, self._deadlines.compile_s)
        )
        begin = time.monotonic()
        try:
            result = measure(
                case, [self._name], self._device, PRECISIONS["check"], deadlines=deadlines
            )
        except Exception as error:
            if class_of(error) != "oom":
                raise
            self._found.not_checked += 1  # there is no memory for the inputs or the reference
            return True
        if result.device_lost:
            return False
        (row,) = result.implementations
        if row.status == "timeout":
            hangs = self._slowest_s > 0 and limit_s >= wanted_s
            count = "failed" if hangs else "not_checked"
            if hangs:  # others may hang, too, and each would keep the device as long
                self._until = begin
        else:
            count = COUNTS.get(row.status, "not_checked")
            if row.status in ("ok", "wrong_result"):
                self._slowest_s = max(self._slowest_s, time.monotonic() - begin)
        self._found.add(count, case.key, row.error)
        return True


def _by_new_features(cases: Iterable[JobCase], *, only_new: bool) -> list[JobCase]:
    """The cases, those first that have a dtype, a layout or a kind of size that none before has.

    Args:
        only_new: leave out all others.
    """
    seen: set[str] = set()
    first: list[JobCase] = []
    rest: list[JobCase] = []
    for case in cases:
        new = {*_features(case)} - seen
        seen |= new
        (first if new else rest).append(case)
    return first if only_new else first + rest


def _described(case: JobCase) -> dict[str, Any]:
    layouts = {name: layout_of(sample) for name, sample in case.inputs.items()}
    return described(case.params, layouts, case.outputs)


def _elements(case: JobCase) -> int:
    return sum(math.prod(sample.shape) for sample in case.inputs.values())


def _features(case: JobCase) -> Iterator[str]:
    for name, sample in case.inputs.items():
        count = math.prod(sample.shape)
        yield f"{name}: {sample.dtype}"
        yield f"{name}: {sample.layout}"
        yield f"{name}: {sample.values}"
        if count < 2:
            yield f"{name}: {count} elements"
        if max(sample.shape, default=0) >= LONG_IF_SMALL:
            yield f"{name}: long"
