"""The process of a verified implementation, which carries out launch plans, and who makes these.

Two processes are started for it. The recorder runs the author's code in the sandbox, without a GPU, and
answers with the launch plan of a case. This process checks the plan and inspects its kernels. The other
process runs no code of the author for the host: it gets the plan and makes the calls.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from warpcall_kernels.execution.inputs import BufferLayout
from warpcall_kernels.execution.printed import Kept
from warpcall_kernels.execution.process import Deadlines, RemoteFailed, RemoteProcess, StartPeer
from warpcall_kernels.execution.spec import DTYPES
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.inspection import Refused, inspect
from warpcall_kernels.verified.plan import InvalidPlan, Plan

PLAN_BYTES = 24 << 20  # of a message with a launch plan
ANSWER_S = 2.0  # in which a recorder ends what it has begun and answers


class VerifiedProcess(RemoteProcess):
    """The process that makes the calls of one verified implementation.

    Args:
        start: starts it.
        recorder: the process with the author's code.
        gpu: architecture to compile for, such as "sm_90".
        on_gpu: whether there is one; otherwise kernels are compiled and inspected, and not called.
    """

    is_verified = True

    def __init__(
        self, start: StartPeer, recorder: RemoteProcess, gpu: str, *, on_gpu: bool
    ) -> None:
        super().__init__(start, {"verified": True})
        self._recorder = recorder
        self._gpu = gpu
        self._on_gpu = on_gpu

    def case_data(self, case: Mapping[str, Any], deadlines: Deadlines) -> dict[str, Any]:
        """The launch plan of a case, from the recorder.

        Raises:
            RemoteFailed: the author's code failed, its kernels cannot be compiled, or what it does
                cannot be verified; also if there is no GPU.
        """
        try:
            plan = self._recorded(case, deadlines)
        finally:
            self._recorder.stop()
        if not self._on_gpu:
            kernels = "1 kernel" if len(plan.kernels) == 1 else f"{len(plan.kernels)} kernels"
            raise RemoteFailed(
                "unchecked",
                f"compiled for {self._gpu} and inspected: {kernels}; "
                "a verified kernel is checked and timed on a GPU only",
            )
        return {"plan": plan.to_json()}

    def prepare(self, cases: Sequence[Mapping[str, Any]], limit_s: float) -> None:
        """Let the recorder compile for many cases side by side, so that each is recorded soon.

        What fails here fails again when its case is recorded.
        """
        self._recorder.begin(Deadlines(compile_s=limit_s))
        with contextlib.suppress(RemoteFailed):
            self._recorder.ask(
                *("prepare", limit_s + ANSWER_S, "the compilation of its kernels"),
                gpu=self._gpu,
                cases=[*cases],
                until_s=limit_s,
            )

    def take_import_s(self) -> float:
        """Seconds of the import of the source and of compiling since this was called last."""
        return super().take_import_s() + self._recorder.take_import_s()

    def begin_like(self, other: RemoteProcess) -> None:
        assert isinstance(other, VerifiedProcess)
        super().begin_like(other)
        self._recorder.begin_like(other._recorder)

    def end(self) -> str:
        """End both processes, and return how the one that makes the calls had ended by itself."""
        self._recorder.end()
        return super().end()

    def _end_failed(self) -> str:
        return super().end()  # the recorder has not failed, and has compiled the author's kernels

    def start_ahead(self) -> None:
        self._recorder.start_ahead()
        if self._on_gpu:
            super().start_ahead()

    def retire(self) -> None:
        self._recorder.retire()
        super().retire()

    def begin_printing(self) -> None:
        """The recorder begins to print before this process starts: see `_recorded`."""

    def take_printed(self) -> Kept:
        """What the author's code has printed, which runs in the recorder only."""
        return self._recorder.take_printed()

    def _recorded(self, case: Mapping[str, Any], deadlines: Deadlines) -> Plan:
        self._recorder.begin(deadlines)
        self._recorder.begin_printing()
        begin = time.monotonic()
        try:
            answer = self._recorder.ask(
                *("record", deadlines.compile_s, "the compilation of its kernels"),
                most_bytes=PLAN_BYTES,
                gpu=self._gpu,
                **case,
            )
        finally:
            self.import_s += time.monotonic() - begin
        layouts = {n: BufferLayout.from_json(d) for n, d in case["layouts"].items()}
        metas = {n: Meta(tuple(s), DTYPES[d]) for n, (s, d) in case["outputs"].items()}
        return checked_plan(answer.get("plan"), layouts, metas, self._gpu)


def checked_plan(
    data: Any, layouts: Mapping[str, BufferLayout], metas: Mapping[str, Meta], gpu: str
) -> Plan:
    """The launch plan of a case, which may be carried out: it is checked, and its kernels inspected.

    Args:
        gpu: architecture that it must be for.

    Raises:
        RemoteFailed: it may not be carried out.
    """
    try:
        plan = read_plan(data, layouts, metas)
    except InvalidPlan as error:
        raise RemoteFailed("error", f"its launch plan is refused: {error}") from None
    if plan.gpu != gpu:
        raise RemoteFailed("error", f"its launch plan is for {plan.gpu}, not for {gpu}")
    try:
        inspect(plan)
    except Refused as error:
        raise RemoteFailed("error", f"its kernels are refused: {error}") from None
    return plan


def read_plan(data: Any, layouts: Mapping[str, BufferLayout], metas: Mapping[str, Meta]) -> Plan:
    """The launch plan of a case, checked.

    Raises:
        InvalidPlan: it is none for this case.
    """
    inputs = {name: one.span * one.dtype.itemsize for name, one in layouts.items()}
    return Plan.from_json(data, inputs, [meta.nbytes for meta in metas.values()])
