"""Checks launch plans of a verification: python -m warpcall_bench.programs.plan_check, our code only.

It gets what was asked for, a `VerifyRequest`, and after it the answer of `programs.verify`, a process
that ran code of users. It checks each launch plan as a job's process does, and answers with one frame:

- `cases`, each with its key `case`, the `reason` why it cannot be verified or an empty text, and what its
  plan does: `steps`, the number of `kernels` and `scratch_bytes`; `declaration`, `remarks` and
  `compiler` as they were answered;
- or `error` and `field`, as they were answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpcall_bench.programs import source_check
from warpcall_bench.programs.source_check import Answers, Refused, text
from warpcall_bench.runs.messages import (
    MAX_REASON_CHARS,
    NO_ANSWER,
    PlanCheckRequest,
    read_plan_check,
)
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    from warpcall_kernels.verified.plan import Action, Plan

MOST_REMARKS = 32
KEY_CHARS = 4096


def main() -> None:
    """Answer one request."""
    source_check.answer_one(_check, read_plan_check)


def _check(request: PlanCheckRequest, folder: Path, answers: Answers) -> dict[str, Any]:
    """Check the answer of a process that ran code of users."""
    with quick_imports():
        import torch

    torch.set_num_threads(1)
    try:
        said = json.loads(request["answer"])
        if "error" in said:
            raise Refused(str(said["error"]), str(said["field"]))
        if len(said["cases"]) != len(request["cases"]):
            raise ValueError
        cases = [
            _case(request, asked, one)
            for asked, one in zip(request["cases"], said["cases"], strict=True)
        ]
        remarks = [str(one) for one in said["remarks"][:MOST_REMARKS]]
        return {
            "cases": cases,
            "declaration": _declaration(said["declaration"]),
            "remarks": [text(one) for one in remarks],
            "compiler": text(str(said["compiler"])),
        }
    except Refused:
        raise
    except Exception:  # noqa: BLE001  # whatever is wrong with it, no honest process answered it
        raise Refused(NO_ANSWER) from None


def _case(
    request: PlanCheckRequest, asked: Mapping[str, Any], said: Mapping[str, Any]
) -> dict[str, Any]:
    """What a case does, or why it cannot be verified."""
    from warpcall_kernels.execution.inputs import layout_of
    from warpcall_kernels.execution.process import RemoteFailed
    from warpcall_kernels.execution.spec import DTYPES, make_case, samples_of
    from warpcall_kernels.execution.verified import checked_plan
    from warpcall_kernels.op.declaration import Meta

    if request["problem"] is None:
        case = make_case(request["op"], asked)
        key, inputs, outputs = case.key, case.inputs, case.outputs
    else:  # only the problem's own code knows them
        key = str(said["key"])[:KEY_CHARS]
        inputs, _ = samples_of(said["spec"])
        outputs = {n: Meta(tuple(map(int, s)), DTYPES[d]) for n, (s, d) in said["outputs"].items()}
    found: dict[str, Any] = {
        "case": key,
        "reason": "",
        "steps": [],
        "kernels": 0,
        "scratch_bytes": 0,
    }
    if "plan" not in said:
        return {**found, "reason": text(str(said["reason"]), MAX_REASON_CHARS) or NO_ANSWER}
    layouts = {name: layout_of(sample) for name, sample in inputs.items()}
    try:
        plan = checked_plan(said["plan"], layouts, outputs, request["gpu"])
    except RemoteFailed as failed:
        return {**found, "reason": text(failed.error)}
    made = sum(meta.nbytes for meta in outputs.values())
    return {
        **found,
        "steps": _steps(plan),
        "kernels": len(plan.kernels),
        "scratch_bytes": max(0, plan.allocated_bytes - made),
    }


def _steps(plan: Plan) -> list[dict[str, Any]]:
    from warpcall_kernels.verified.cubin import Cubin
    from warpcall_kernels.verified.inspection import registers_of

    registers = [registers_of(Cubin.parse(one.cubin), one.name) for one in plan.kernels]
    return [
        {
            "choices": [
                {
                    "label": text(choice.label),
                    "actions": [_action(plan, registers, action) for action in choice.actions],
                }
                for choice in step
            ]
        }
        for step in plan.steps
    ]


def _action(plan: Plan, registers: list[int], action: Action) -> dict[str, Any]:
    from warpcall_kernels.verified.plan import Fill, Launch

    if isinstance(action, Launch):
        kernel = plan.kernels[action.kernel]
        return {
            "kind": "launch",
            "kernel": kernel.name,
            "grid": [*action.grid],
            "threads": [*kernel.threads],
            "cluster": [*kernel.cluster],
            "shared_bytes": kernel.shared_bytes,
            "registers": registers[action.kernel],
        }
    if isinstance(action, Fill):
        return {"kind": "fill", "nbytes": action.count * action.nbytes}
    target = action.target
    count = 1
    for size in target.shape:
        count *= size
    return {"kind": "copy", "nbytes": count * target.dtype.itemsize}


def _declaration(said: Any) -> dict[str, Any] | None:
    """A declaration that was answered; None if there is none, or it is not valid."""
    from warpcall_kernels.verified.declaration import Declaration, InvalidDeclaration

    if said is None:
        return None
    try:
        Declaration.from_json(said)
    except InvalidDeclaration:
        return None
    assert isinstance(said, dict)
    return said


if __name__ == "__main__":
    main()
