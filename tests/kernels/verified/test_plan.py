"""Launch plans come from processes with code of users: each member is checked before it is used."""

from __future__ import annotations

import base64
import copy
import json
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warpcall_kernels.verified.plan import (
    MOST_BUFFERS,
    MOST_CHOICES,
    MOST_CUBIN_BYTES,
    MOST_KERNELS,
    MOST_LAUNCHES,
    MOST_STEPS,
    Buffer,
    Choice,
    Copy,
    Fill,
    InvalidPlan,
    Kernel,
    Launch,
    Place,
    Plan,
    View,
)

INPUTS = {"x": 4096, "mask": 64}
OUTPUTS = [4096, 128]
CUBIN = b"\x7fELF" + os.urandom(100)
KERNEL = Kernel("fill", CUBIN, ("*", "*", "i32", "fp32", "u8", "*"), (128, 1, 1), 1024, (2, 1, 1))
PLAN = Plan(
    "sm_90",
    (KERNEL,),
    (Buffer("x", 4096), Buffer("", 8192), Buffer("", 300), Buffer("mask", 64)),
    (
        (
            Choice(
                "BLOCK: 64",
                (
                    Fill(Place(2, 100), 50, 4, 0x3F800000),
                    Launch(
                        0, (7, 1, 1), (Place(0, 16), Place(1, 0), -3, 0.5, 255, None), early=True
                    ),
                ),
            ),
            Choice("BLOCK: 128", (Launch(0, (9, 2, 1), (None, None, 1, 1.0, 0, None)),)),
        ),
        (
            Choice(
                "",
                (
                    Copy(
                        View(Place(0, 0), torch.float32, (16, 4), (4, 1)),
                        View(Place(1, 512), torch.bfloat16, (16, 4), (1, 16)),
                    ),
                ),
            ),
        ),
    ),
    (Place(1, 4096), Place(2, 172)),
)


def read(data: Any) -> Plan:
    return Plan.from_json(data, INPUTS, OUTPUTS)


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    data = copy.deepcopy(PLAN.to_json())
    change(data)
    return data


def test_a_plan_survives_json() -> None:
    assert read(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def test_the_size_of_an_input_is_that_of_the_case() -> None:
    found = read(changed(lambda data: data["buffers"].__setitem__(0, ["x", 1 << 60])))
    assert found.buffers[0].nbytes == 4096
    assert found.allocated_bytes == 8192 + 300


def action(data: dict[str, Any], step: int = 0, choice: int = 0, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = data["steps"][step][choice]["actions"][number]
    return found


def launch(data: dict[str, Any]) -> dict[str, Any]:
    return action(data, 0, 0, 1)


def packed(cubin: bytes) -> str:
    return base64.b64encode(zlib.compress(cubin)).decode()


BAD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a buffer of another input": lambda d: d["buffers"].append(["y", 4]),
    "a negative buffer": lambda d: d["buffers"].append(["", -1]),
    "too many buffers": lambda d: d["buffers"].extend([["", 4]] * MOST_BUFFERS),
    "too many kernels": lambda d: d["kernels"].extend(d["kernels"] * MOST_KERNELS),
    "an unknown type": lambda d: d["kernels"][0]["parameters"].__setitem__(2, "tensordesc"),
    "a name that is no text": lambda d: d["kernels"][0].update(name=3),
    "an empty name": lambda d: d["kernels"][0].update(name=""),
    "too many threads": lambda d: d["kernels"][0].update(threads=[1024, 2, 1]),
    "no threads": lambda d: d["kernels"][0].update(threads=[0, 1, 1]),
    "too large a cluster": lambda d: d["kernels"][0].update(cluster=[16, 2, 1]),
    "too much shared memory": lambda d: d["kernels"][0].update(shared_bytes=1 << 20),
    "no cubin": lambda d: d["kernels"][0].update(cubin="!"),
    "half a cubin": lambda d: d["kernels"][0].update(cubin=d["kernels"][0]["cubin"][:40]),
    "a cubin that inflates": lambda d: d["kernels"][0].update(
        cubin=packed(bytes(MOST_CUBIN_BYTES + 1))
    ),
    "cubins of too many bytes": lambda d: d.update(
        kernels=[{**d["kernels"][0], "cubin": packed(bytes(MOST_CUBIN_BYTES))}] * 17
    ),
    "a step without a choice": lambda d: d["steps"].append([]),
    "too many steps": lambda d: d["steps"].extend(d["steps"] * MOST_STEPS),
    "too many choices": lambda d: d["steps"].append(d["steps"][1] * (MOST_CHOICES + 1)),
    "too many launches": lambda d: d["steps"].extend([d["steps"][0]] * MOST_LAUNCHES),
    "too many launches in a choice": lambda d: d["steps"][0][0]["actions"].extend(
        [launch(d)] * MOST_LAUNCHES
    ),
    "a launch of no kernel": lambda d: launch(d).update(launch=1),
    "a launch of a negative kernel": lambda d: launch(d).update(launch=-1),
    "a true kernel": lambda d: launch(d).update(launch=False),
    "too few arguments": lambda d: launch(d)["arguments"].pop(),
    "too many arguments": lambda d: launch(d)["arguments"].append(None),
    "a number for a pointer": lambda d: launch(d)["arguments"].__setitem__(0, 1 << 40),
    "a place of no buffer": lambda d: launch(d)["arguments"].__setitem__(0, [4, 0]),
    "a place before its buffer": lambda d: launch(d)["arguments"].__setitem__(0, [0, -1]),
    "a place behind its buffer": lambda d: launch(d)["arguments"].__setitem__(0, [0, 4097]),
    "a place for a number": lambda d: launch(d)["arguments"].__setitem__(2, [0, 0]),
    "a number beyond its type": lambda d: launch(d)["arguments"].__setitem__(4, 256),
    "a float for an integer": lambda d: launch(d)["arguments"].__setitem__(2, 1.0),
    "a text for a float": lambda d: launch(d)["arguments"].__setitem__(3, "1"),
    "a float of many digits": lambda d: launch(d)["arguments"].__setitem__(3, 10**400),
    "a grid of two numbers": lambda d: launch(d).update(grid=[1, 1]),
    "a negative grid": lambda d: launch(d).update(grid=[-1, 1, 1]),
    "a high grid": lambda d: launch(d).update(grid=[1, 65536, 1]),
    "an attribute that is a number": lambda d: launch(d).update(early=1),
    "a fill of an input": lambda d: action(d).update(fill=[0, 0]),
    "a fill beyond its buffer": lambda d: action(d).update(count=51),
    "a fill within an element": lambda d: action(d).update(fill=[2, 98]),
    "a fill of other elements": lambda d: action(d).update(nbytes=8),
    "a fill of a large value": lambda d: action(d).update(value=1 << 32),
    "a copy to an input": lambda d: action(d, 1)["to"].update(place=[3, 0]),
    "a copy of two shapes": lambda d: action(d, 1)["to"].update(shape=[4, 4]),
    "a copy from beyond a buffer": lambda d: action(d, 1)["copy"].update(strides=[600, 1]),
    "a copy with negative strides": lambda d: action(d, 1)["copy"].update(strides=[-4, 1]),
    "a copy of no dtype": lambda d: action(d, 1)["copy"].update(dtype="object"),
    "a copy with fewer strides": lambda d: action(d, 1)["copy"].update(strides=[1]),
    "an action of no kind": lambda d: d["steps"][1][0]["actions"].append({"call": "system"}),
    "a missing output": lambda d: d["outputs"].pop(),
    "one output too many": lambda d: d["outputs"].append([1, 0]),
    "an output in an input": lambda d: d["outputs"].__setitem__(1, [0, 0]),
    "an output beyond its buffer": lambda d: d["outputs"].__setitem__(0, [1, 4097]),
    "a label of an essay": lambda d: d["steps"][0][0].update(label="x" * 1000),
    "no gpu": lambda d: d.pop("gpu"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_recorder_makes_is_refused(name: str) -> None:
    with pytest.raises(InvalidPlan):
        read(changed(BAD[name]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_plan_or_refused(data: Any) -> None:
    with pytest.raises(InvalidPlan):
        read(data)


@given(st.data())
def test_any_change_gives_a_plan_or_is_refused(data: st.DataObject) -> None:
    """A plan that is read has only places in its buffers, whatever was changed in it."""

    def change(value: Any) -> Any:
        if isinstance(value, dict) and value:
            key = data.draw(st.sampled_from(sorted(value)))
            return {**value, key: change(value[key])}
        if isinstance(value, list) and value:
            at = data.draw(st.integers(0, len(value) - 1))
            return [*value[:at], change(value[at]), *value[at + 1 :]]
        return data.draw(JSON)

    try:
        found = read(change(PLAN.to_json()))
    except InvalidPlan:
        return
    text = json.dumps(found.to_json())  # a NaN among the arguments is not equal to itself
    assert json.dumps(read(json.loads(text)).to_json()) == text
