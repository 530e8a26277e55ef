"""Proposes declarations for sources: python -m tests.kernels.verified.proposing < sources.json

For each it prints what `propose` returns, and how plans of the declaration differ from those recorded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from warpcall_kernels.compile.architectures import architecture
from warpcall_kernels.compile.pretended import pretending
from warpcall_kernels.execution.inputs import BufferLayout
from warpcall_kernels.execution.record_server import Recorded, plan_of, recording_of
from warpcall_kernels.execution.spec import DTYPES
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.launched import use_driver
from warpcall_kernels.verified.plan import Launch, Place, Plan
from warpcall_kernels.verified.proposal import propose

TARGET = architecture("sm_90")


def main() -> None:
    """Answer one request."""
    use_driver(TARGET)
    answers = {}
    for name, one in json.load(sys.stdin).items():
        with tempfile.TemporaryDirectory() as folder:
            answers[name] = proposed(one, Path(folder, "mine.py"))
    json.dump(answers, sys.stdout)


def proposed(request: dict[str, Any], file: Path) -> dict[str, Any]:
    """The proposal for a source and cases."""
    file.write_text(request["source"])
    spec = importlib.util.spec_from_file_location("uploaded", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pretending(TARGET):
        spec.loader.exec_module(module)
    function = getattr(module, request["function"])
    cases = [
        (
            {n: BufferLayout.from_json(layout) for n, layout in case["inputs"].items()},
            case["params"],
            {n: Meta(tuple(shape), DTYPES[d]) for n, (shape, d) in case["outputs"].items()},
        )
        for case in request["cases"]
    ]
    recordings = []
    for case in cases:
        _, recording = recording_of(Recorded(function), *case, TARGET)
        assert recording is not None
        recordings.append(recording)
    found = propose(recordings)
    different = []
    if found["declaration"] is not None:
        declared = Recorded(function, module=module, declaration=found["declaration"])
        for case, recording in zip(cases, recordings, strict=True):
            plan = plan_of(declared, *case, TARGET)
            if launches_of(plan) != launches_of(recording.plan):
                pairs = zip(launches_of(plan), launches_of(recording.plan), strict=False)
                different.append([[str(a), str(b)] for a, b in pairs if a != b])
    return {**found, "different": different}


def launches_of(plan: Plan) -> list[Any]:
    """The launches of all choices, whatever the order of kernels, buffers and choices is."""
    found = [
        (
            hashlib.sha256(plan.kernels[action.kernel].cubin).hexdigest(),
            plan.kernels[action.kernel].name,
            plan.kernels[action.kernel].threads,
            action.grid,
            [_described(plan, argument) for argument in action.arguments],
        )
        for number in range(max(map(len, plan.steps)))
        for step in plan.steps
        for action in step[min(number, len(step) - 1)].actions
        if isinstance(action, Launch)
    ]
    return sorted(found, key=str)


def _described(plan: Plan, argument: Any) -> Any:
    if not isinstance(argument, Place):
        return argument
    buffer = plan.buffers[argument.buffer]
    output = plan.outputs.index(argument) if argument in plan.outputs else None
    return buffer.input, buffer.nbytes, argument.offset, output


if __name__ == "__main__":
    main()
