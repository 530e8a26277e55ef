"""A problem is declared and measured without torch's compiler, which is there when code asks for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# `square`, `mean` and `where` have their form for the device "meta" in Python.
PROGRAM = """
import json, os, sys
import torch
from tests.kernels.problems.row_norm import problem
from warpcall_kernels.op.uncompiled import without_compiler

def computed(x):
    return torch.where(x > 0, x.square().mean(-1, keepdim=True), x.exp())

def imported():
    return "torch._dynamo" in sys.modules

x = torch.arange(12.0).reshape(3, 4) - 5
outputs = problem().op("row-norm").outputs
with without_compiler():
    shape = [*computed(x.to("meta")).shape]
found = [len(outputs), shape, imported()]
for inside in json.loads(sys.argv[1]):  # each in a process that has not imported the compiler
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
        continue
    with without_compiler():
        exec(inside)
        found.append(type(torch._dynamo).__name__)
    found.append(imported())
    compiled = torch.compile(computed, backend="aot_eager", fullgraph=True)
    found.append(torch.equal(compiled(x), computed(x)))
    with without_compiler():
        found.append([*compiled(x.to("meta")).shape])
    print(json.dumps(found), flush=True)
    os._exit(0)
"""
INSIDE = ("import torch._dynamo.config", "import torch; torch._dynamo.is_compiling()")


def test_a_problem_needs_no_compiler_and_what_is_compiled_later_is_right() -> None:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(INSIDE)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    found = [json.loads(line) for line in said.splitlines()]
    assert len(found) == len(INSIDE)
    for inside, (outputs, shape, before, within, after, right, again) in zip(
        INSIDE, found, strict=True
    ):
        assert (outputs, shape, before) == (1, [3, 4], False)
        assert (within, after) == ("module", True), f"{inside} has the real one"
        assert (right, again) == (True, [3, 4])
