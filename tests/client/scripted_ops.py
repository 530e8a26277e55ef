"""A scripted server that has ops: the part of the service that the command uses.

Declarations are those of the real ops; torch computes what they are equivalent to.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
from torch import Tensor

from tests.client.scripted import ScriptedServer, Visit
from warpcall import errors
from warpcall.errors import InvalidInput, NotFound, Problem
from warpcall_kernels import ops

DECLARED: dict[str, dict[str, Any]] = {name: op.describe() for name, op in ops().items()}
LANE = {"name": "cuda:0", "reason": "", "device": "", "restarts": 0, "queued": 0, "in_flight": 0}
LIMITS = {"requests_in_flight": None, "bytes_in_flight": 1 << 30, "requests_per_s": 100.0}
ME = {
    "name": "ann",
    "role": "bench",
    "limits": LIMITS,
    "in_flight": {"requests": 1, "bytes": 0},
}
READY = {
    "status": "ready",
    "reasons": [],
    "uploads": "off",
    "lanes": [{**LANE, "state": "ready", "device": "cuda:0 (NVIDIA H200)"}],
    "checks": [{"name": "devices", "state": "ok"}],
}
NOT_READY = {
    "status": "unready",
    "reasons": ["no lane is ready"],
    "uploads": "off",
    "lanes": [{**LANE, "state": "starting", "reason": "imports torch"}],
    "checks": [{"name": "devices", "state": "failed"}],
}
ANSWER_HEADERS = {
    "X-Request-Id": "r9",
    "X-Warpcall-Device": "cuda:0 (NVIDIA H200)",
    "Server-Timing": "queue;dur=0.5, kernel;dur=2",
}


@dataclass
class Seen:
    """The requests that the ops received."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    calls: int = 0


class OpsServer(ScriptedServer):
    """Answers /readyz, lists and describes the ops, and runs them."""

    def __init__(self, *, ready: bool = True) -> None:
        super().__init__(self._answer)
        self.seen = Seen()
        self.declared = copy.deepcopy(DECLARED)
        self._ready = ready

    def _answer(self, visit: Visit) -> None:
        self.seen.headers = visit.headers
        name = visit.target.rpartition("/")[2]
        if visit.target == "/readyz":
            say(visit, 200 if self._ready else 503, READY if self._ready else NOT_READY)
        elif visit.target == "/v1/me":
            say(visit, 200, ME)
        elif visit.target == "/v1/kernels":
            say(visit, 200, {"kernels": list(self.declared.values())})
        elif name not in self.declared:
            refuse(visit, NotFound(f"there is no op {name!r}"))
        elif "content-type" in visit.headers:
            self._run(visit, name)
        else:
            say(visit, 200, self.declared[name])

    def _run(self, visit: Visit, name: str) -> None:
        body = visit.body()
        header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        self.seen.params = json.loads(header.get("__metadata__", {}).get("params", "{}"))
        self.seen.inputs = safetensors.torch.load(body)
        self.seen.calls += 1
        try:
            outputs = _compute(self.declared[name], self.seen.inputs, self.seen.params)
        except InvalidInput as problem:
            return refuse(visit, problem)
        out = {key: tensor.contiguous() for key, tensor in outputs.items()}
        return visit.answer(200, safetensors.torch.save(out), ANSWER_HEADERS)


def _compute(
    op: dict[str, Any], inputs: dict[str, Tensor], params: dict[str, Any]
) -> dict[str, Tensor]:
    """The output of permute; of other ops, the first input under the name of each output."""
    if op["name"] == "permute":
        x = inputs["x"]
        if len(params["dims"]) != x.ndim:
            raise InvalidInput(f"dims must name each of the {x.ndim} dims of x", field="dims")
        return {"out": x.permute(params["dims"])}
    given = next(iter(inputs.values()))
    outputs = op["outputs"]
    wanted = [o["name"] for o in outputs if not o["when"] or params.get("bias")]
    return {output: given.clone() for output in wanted}


def say(visit: Visit, status: int, members: dict[str, Any]) -> None:
    visit.answer(status, json.dumps(members).encode(), {"Content-Type": "application/json"})


def refuse(visit: Visit, problem: Problem) -> None:
    body = json.dumps(problem.to_json()).encode()
    visit.answer(problem.status, body, {"Content-Type": errors.MEDIA_TYPE})
