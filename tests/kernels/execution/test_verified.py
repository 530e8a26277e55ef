"""The process that measures takes a launch plan from the recorder only if it is sound."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.kernels.execution.thread_peer import UnstoppedPeer
from warpcall_kernels.execution import frames, verified
from warpcall_kernels.execution.process import Deadlines, RemoteFailed, RemoteProcess
from warpcall_kernels.execution.verified import PLAN_BYTES, VerifiedProcess
from warpcall_kernels.verified.inspection import Refused
from warpcall_kernels.verified.plan import Plan

CASE = {
    "params": {"dims": [1, 0]},
    "layouts": {
        "x": {"dtype": "F32", "shape": [2, 4], "strides": [4, 1], "begin": 1024, "span": 8}
    },
    "outputs": {"out": [[4, 2], "F32"]},
}
PLAN = {
    "gpu": "sm_90",
    "kernels": [],
    "buffers": [["x", 32], ["", 32]],
    "steps": [[{"label": "", "actions": [{"fill": [1, 0], "count": 8, "nbytes": 4, "value": 0}]}]],
    "outputs": [[1, 0]],
}
LARGE = "x" * (frames.MOST_BYTES + 1)
FAILED = {"status": "cuda_error", "error": "an illegal address", "traceback": None}


class Recorder(UnstoppedPeer):
    """A recorder that answers each request with what a function makes of it."""

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.sock, self._theirs = socket.socketpair()
        self._answer = answer
        self.stopped = 0
        self.requests: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while True:
                request = frames.receive(self._theirs)
                self.requests.append(request)
                if request["do"] == "load":
                    frames.send(self._theirs, {"number": request["number"], "first": True})
                    answer: dict[str, Any] = {}
                else:
                    answer = self._answer(request)
                frames.send(self._theirs, {**answer, "number": request["number"]})
        except frames.Ended:
            return

    def stop(self) -> None:
        self.stopped += 1

    def end(self) -> str:
        self._theirs.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._theirs.close()
        return ""


def never() -> Any:
    raise AssertionError("the process that makes calls is not needed")


def data_of(
    answer: dict[str, Any], *, on_gpu: bool = True
) -> tuple[dict[str, Any], Recorder, VerifiedProcess]:
    peer = Recorder(lambda request: answer)
    recorder = RemoteProcess(lambda: peer, {"upload": {}})
    process = VerifiedProcess(never, recorder, "sm_90", on_gpu=on_gpu)
    try:
        return process.case_data(CASE, Deadlines()), peer, process
    finally:
        recorder.end()


def test_the_plan_of_a_case_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    inspected: list[Plan] = []
    monkeypatch.setattr(verified, "inspect", inspected.append)

    data, peer, process = data_of({"plan": PLAN, "more": LARGE})

    assert data == {"plan": PLAN}
    assert [plan.to_json() for plan in inspected] == [PLAN]
    load, record = peer.requests
    assert load["data"] == {"upload": {}}
    assert record["gpu"] == "sm_90"
    assert {name: record[name] for name in CASE} == CASE
    assert peer.stopped  # what it goes on to do would take time from others
    assert process.take_import_s() > 0


def refusal(answer: dict[str, Any]) -> RemoteFailed:
    with pytest.raises(RemoteFailed) as raised:
        data_of(answer)
    return raised.value


def test_a_plan_that_is_none_is_refused() -> None:
    found = refusal({"plan": {**PLAN, "outputs": [[0, 0]]}})

    assert found.status == "error"
    assert str(found) == "its launch plan is refused: an output lies in an input"
    assert "plan is refused" in str(refusal({}))


def test_kernels_that_may_not_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(plan: Plan) -> None:
        raise Refused("the kernel has a writable global")

    monkeypatch.setattr(verified, "inspect", refuse)

    assert (
        str(refusal({"plan": PLAN})) == "its kernels are refused: the kernel has a writable global"
    )


def test_a_plan_of_another_architecture_is_refused() -> None:
    assert "sm_80" in str(refusal({"plan": {**PLAN, "gpu": "sm_80"}}))


def test_a_failure_of_the_recorder_is_that_of_the_implementation() -> None:
    failed = {"status": "compile_error", "error": "line 3: no", "traceback": None}

    found = refusal({"failed": failed})

    assert (found.status, str(found)) == ("compile_error", "line 3: no")


def test_an_answer_without_end_ends_the_recorder() -> None:
    assert refusal({"plan": "x" * PLAN_BYTES}).status == "crashed"


def test_without_a_gpu_kernels_are_compiled_and_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "inspect", lambda plan: None)

    with pytest.raises(RemoteFailed, match="compiled for sm_90 and inspected: 0 kernels") as raised:
        data_of({"plan": PLAN}, on_gpu=False)

    assert raised.value.status == "unchecked"


@pytest.mark.parametrize("failed", [False, True])
def test_the_recorder_prepares_cases_before_they_are_recorded(*, failed: bool) -> None:
    problem = {"status": "error", "error": "no", "traceback": None}
    peer = Recorder(lambda request: {"failed": problem} if failed else {})
    recorder = RemoteProcess(lambda: peer, {"upload": {}})
    process = VerifiedProcess(never, recorder, "sm_90", on_gpu=True)

    process.prepare([CASE, CASE], 3.0)
    recorder.end()

    assert peer.requests[1]["do"] == "prepare"
    assert peer.requests[1]["cases"] == [CASE, CASE]
    assert peer.requests[1]["until_s"] == 3.0


def test_a_kernel_that_ends_its_process_does_not_end_the_recorder() -> None:
    recorder = Recorder(lambda _: {"plan": PLAN})
    started: list[Recorder] = []

    def start() -> Recorder:
        started.append(Recorder(lambda _: {"failed": FAILED}))
        return started[-1]

    recording = RemoteProcess(lambda: recorder, {})
    process = VerifiedProcess(start, recording, "sm_90", on_gpu=True)
    try:
        for count in (1, 2):
            recording.begin(Deadlines())
            process.begin(Deadlines())
            with pytest.raises(RemoteFailed, match="illegal address"):
                process.ask("call", 30.0, "a call")

            assert len(started) == count
            assert not process.runs
            assert recording.runs
        loads = [one for one in recorder.requests if one["do"] == "load"]
        assert len(loads) == 1, "it was started once"
    finally:
        process.end()
    assert not recording.runs
