"""The trace of one run of a job: its wait in the queue, its start, each case, and its end.

These spans follow one another without gaps: each begins where the one before it ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from warpcall_bench.runs.events import (
    CaseMeasured,
    EnvironmentKnown,
    OddCasesChecked,
    ProfileMade,
    Progress,
    RunEvent,
    StateChanged,
)
from warpcall_bench.runs.runner import Outcome
from warpcall_service.extension import Traces, TraceSpan

Attributes = Mapping[str, str | int | float | bool]

MOST_SPANS = 1000  # of one run; cases and phases that follow have none


class RunTrace:
    """Makes the spans of a run from its events, when they come.

    Args:
        span: of the whole run, which has begun when the job was queued.
        queued_ns: when that was, in nanoseconds since 1970.
    """

    def __init__(self, span: TraceSpan, queued_ns: int) -> None:
        self._run = span
        self._left = MOST_SPANS
        self._at = queued_ns  # where the next span begins
        self._stage: TraceSpan | None = None  # a case, or another part of the run
        self._phase: TraceSpan | None = None  # of the case
        self._phase_key: tuple[object, object] = ("", "")
        self._waits_since = 0  # for the device; 0 if it does not
        self._waited_ns = 0  # in the current stage
        self._end_stage("queue")

    def on_event(self, event: RunEvent) -> None:
        """Note what happened in the run now."""
        match event:
            case StateChanged("waiting_gpu"):
                self._waits_since = time.time_ns()
            case StateChanged("running"):
                self._end_wait(time.time_ns())
            case EnvironmentKnown():
                self._end_stage("start")
            case OddCasesChecked(name, _):
                self._end_stage("odd cases", {"warpcall.implementation": name})
            case Progress(fields):
                self._begin_phase(fields)
            case CaseMeasured(position, result):
                each = result["implementations"]
                statuses = ", ".join(f"{one['name']}: {one['status']}" for one in each)
                self._end_stage("case", {"warpcall.case": position, "warpcall.statuses": statuses})
            case ProfileMade(position, name, _, _, error):
                profiled: Attributes = {
                    "warpcall.case": position,
                    "warpcall.implementation": name,
                }
                self._end_stage("profile", profiled, error)
            case StateChanged("finalizing"):
                if self._phase is not None:  # a case that was not measured to its end
                    self._end_stage("case", error="it was not measured to its end")

    def end(self, job_id: str, user: str, device: str, outcome: Outcome, state: str) -> None:
        """End the trace, when the end of the run is written.

        Args:
            state: of the job now; empty if it is not known.
        """
        if self._phase is not None:
            self._end_stage("case", error=outcome.detail)
        self._end_stage("end")
        exit_class = outcome.exit_class
        attributes: Attributes = {
            "warpcall.job": job_id,
            "user.name": user,
            "warpcall.device": device,
            "warpcall.device_s": outcome.device_s,
            "warpcall.exit_class": exit_class,
            "warpcall.state": state,
            "warpcall.spans_left_out": max(0, -self._left),
        }
        self._run.end(self._at, attributes, "" if exit_class == "ok" else outcome.detail)

    def _begin_phase(self, fields: Mapping[str, object]) -> None:
        """Begin a phase of the current case, unless it goes on."""
        key = fields.get("phase"), fields.get("implementation")
        if key == self._phase_key:
            return
        now = time.time_ns()
        self._end_phase(now)
        self._phase_key = key
        if self._stage is None:
            self._stage = self._child(self._run, "case", self._at)
        if self._stage is not None:
            self._phase = self._child(self._stage, str(key[0] or "case"), now)

    def _end_phase(self, now: int) -> None:
        if self._phase is not None:
            name = self._phase_key[1]
            self._phase.end(now, {"warpcall.implementation": str(name)} if name else None)
        self._phase, self._phase_key = None, ("", "")

    def _end_wait(self, now: int) -> None:
        if self._waits_since:
            self._waited_ns += now - self._waits_since
        self._waits_since = 0

    def _end_stage(self, name: str, attributes: Attributes | None = None, error: str = "") -> None:
        """End the current part of the run, and let the next one begin now."""
        now = time.time_ns()
        self._end_wait(now)
        self._end_phase(now)
        stage = self._stage or self._child(self._run, name, self._at)
        if stage is not None:
            stage.rename(name)
            waited = {"warpcall.device_wait_ms": self._waited_ns / 1e6} if self._waited_ns else {}
            stage.end(now, {**(attributes or {}), **waited}, error)
        self._stage, self._at, self._waited_ns = None, now, 0

    def _child(self, parent: TraceSpan, name: str, began_ns: int) -> TraceSpan | None:
        self._left -= 1
        return parent.child(name, began_ns) if self._left >= 0 else None


def begin_trace(traces: Traces | None, op: str, queued_ms: int, link: str) -> RunTrace | None:
    """The trace of a run that begins now; None if it is not traced.

    Args:
        queued_ms: when its job was queued last, in milliseconds since 1970.
        link: names the request that submitted the job; empty if that has no trace.
    """
    if traces is None:
        return None
    queued_ns = queued_ms * 1_000_000
    span = traces.begin_run(f"job {op}", queued_ns, link)
    return None if span is None else RunTrace(span, queued_ns)
