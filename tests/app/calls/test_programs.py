"""Programs: run as written, refused as a whole before anything runs, bounded in memory."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.service.requests import SAFETENSORS, metrics, npy, problem_of
from tests.service.stored_tensors import X, get, listed, memory, put
from warpcall_service.calls.programs import MAX_STEPS

PROGRAMS = "/v1/programs"
TURN: dict[str, Any] = {
    "name": "t",
    "op": "permute",
    "inputs": {"x": "x"},
    "params": {"dims": [1, 0]},
}
ADD: dict[str, Any] = {"name": "s", "op": "transpose-add", "inputs": {"a": "t", "b": "t"}}


def step(base: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {**base, **changed}


def send(
    http: httpx.Client, program: object, arrays: dict[str, Any] | None = None, **headers: str
) -> httpx.Response:
    body = save(
        {"x": X} if arrays is None else arrays,
        metadata={"params": json.dumps({"program": program})},
    )
    return http.post(PROGRAMS, content=body, headers={"content-type": SAFETENSORS, **headers})


def test_steps_are_wired_by_name_and_only_the_outputs_come_back(
    tensor_client: httpx.Client,
) -> None:
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    program = {"steps": [TURN, ADD], "outputs": {"y": "s", "turned": "t.out"}}

    answer = send(tensor_client, program, {"x": square})

    outputs = load(answer.content)
    assert outputs.keys() == {"y", "turned"}
    np.testing.assert_array_equal(outputs["turned"], square.T)
    np.testing.assert_array_equal(outputs["y"], square + square.T)
    assert answer.headers["x-warpcall-device"].startswith("cpu")


def test_a_step_of_several_outputs_gives_them_by_name(tensor_client: httpx.Client) -> None:
    x, w = np.ones((1, 2, 5), np.float32), np.ones((2, 3), np.float32)
    gradients = {
        "name": "g",
        "op": "conv-backward",
        "inputs": {"grad_output": "y", "x": "x", "weight": "w"},
    }
    steps = [{"name": "y", "op": "conv", "inputs": {"x": "x", "weight": "w"}}, gradients]

    right = send(
        tensor_client, {"steps": steps, "outputs": {"gw": "g.grad_weight"}}, {"x": x, "w": w}
    )
    vague = send(tensor_client, {"steps": steps, "outputs": {"gw": "g"}}, {"x": x, "w": w})
    absent = send(
        tensor_client, {"steps": steps, "outputs": {"gw": "g.grad_bias"}}, {"x": x, "w": w}
    )

    assert load(right.content)["gw"].shape == (2, 3)
    assert "must be g.grad_x or g.grad_weight" in problem_of(
        vague, 422, "invalid-input", "outputs.gw"
    )
    assert "g, which gives grad_x, grad_weight" in problem_of(
        absent, 422, "invalid-input", "outputs.gw"
    )


def test_a_program_has_a_softmax_with_a_bias_and_both_gradients(
    tensor_client: httpx.Client,
) -> None:
    scores = np.zeros((2, 1, 2, 2), np.float32)
    bias = np.log(np.array([[1, 3], [1, 1]], np.float32))
    given = {"x": "x", "bias": "bias", "slopes": "slopes"}
    gradients = {"grad_output": "x", "output": "y", "bias": "bias"}
    steps = [
        {"name": "y", "op": "masked-softmax", "inputs": given},
        {"name": "g", "op": "masked-softmax-bias-backward", "inputs": gradients},
    ]
    outputs = {"y": "y", "grad_x": "g.grad_x", "grad_bias": "g.grad_bias"}
    inputs = {"x": scores, "bias": bias, "slopes": np.zeros(1, np.float32)}

    answer = send(tensor_client, {"steps": steps, "outputs": outputs}, inputs)

    found = load(answer.content)
    np.testing.assert_allclose(found["y"], [[[[0.25, 0.75], [0.5, 0.5]]]] * 2)
    assert (found["grad_x"].shape, found["grad_bias"].shape) == ((2, 1, 2, 2), (2, 2))
    assert not found["grad_bias"].any()


def test_it_comes_as_json_or_as_a_form_too(tensor_client: httpx.Client) -> None:
    program = {"steps": [TURN], "outputs": {"y": "t"}}
    x = {"dtype": "F32", "shape": [2, 3], "data": X.tolist()}

    as_json = tensor_client.post(
        PROGRAMS,
        json={"inputs": {"x": x}, "params": {"program": program}},
        headers={"accept": "application/json"},
    )
    as_form = tensor_client.post(
        PROGRAMS,
        files={"x": ("x.npy", npy(np.asfortranarray(X)))},
        data={"program": json.dumps(program)},
    )

    assert as_json.json()["outputs"]["y"]["data"] == X.T.tolist()
    np.testing.assert_array_equal(load(as_form.content)["y"], X.T)


def test_it_takes_kept_tensors_and_keeps_outputs(tensor_client: httpx.Client) -> None:
    put(tensor_client, "photo")
    program = {
        "steps": [step(TURN, inputs={"x": "p"}), step(ADD, inputs={"a": "t", "b": "p"})],
        "outputs": {"y": "s", "t": "t"},
    }
    headers = {"X-Warpcall-Tensors": "p=photo", "X-Warpcall-Store": "t=turned"}

    answer = send(tensor_client, program, {}, **headers)
    in_json = tensor_client.post(
        PROGRAMS,
        json={"params": {"program": program}},
        headers={**headers, "accept": "application/json"},
    )

    np.testing.assert_array_equal(load(answer.content)["y"], X + X)
    np.testing.assert_array_equal(get(tensor_client, "turned"), X.T)
    assert in_json.json()["stored"]["t"]["id"] == "turned"
    assert memory(tensor_client) == 48


def test_empty_tensors_pass_through_every_step(tensor_client: httpx.Client) -> None:
    x = np.zeros((0, 3), np.float32)
    program = {
        "steps": [TURN, step(ADD, inputs={"a": "t", "b": "x"})],
        "outputs": {"y": "s", "same": "x"},
    }

    outputs = load(send(tensor_client, program, {"x": x}).content)

    assert outputs["y"].shape == outputs["same"].shape == (0, 3)


GOOD = {"steps": [TURN], "outputs": {"y": "t"}}
WRONG: tuple[tuple[object, str, str], ...] = (
    (None, "program", "must have steps and outputs, got None"),
    ({"steps": [TURN]}, "program", "must have steps and outputs"),
    ({**GOOD, "more": 1}, "program", "must have steps and outputs"),
    ({**GOOD, "steps": []}, "steps", f"1 to {MAX_STEPS} steps"),
    ({**GOOD, "steps": [TURN] * (MAX_STEPS + 1)}, "steps", f"1 to {MAX_STEPS} steps"),
    ({**GOOD, "steps": [3]}, "steps", "step 1 must have name, op, inputs"),
    ({**GOOD, "steps": [step(TURN, keep=1)]}, "steps", "step 1 must have name, op, inputs"),
    ({**GOOD, "steps": [TURN, TURN]}, "steps", "the name of step 2 must be like t or step_2, and its own"),
    ({**GOOD, "steps": [step(TURN, name="a.b")]}, "steps", "the name of step 1"),
    ({**GOOD, "steps": [step(TURN, op=3)]}, "t.op", "op must be a string, got 3"),
    ({**GOOD, "steps": [step(TURN, params=[1])]}, "t.params", "params must be an object"),
    ({**GOOD, "steps": [step(TURN, inputs={"x": 1})]}, "t.x", "step t (permute): x must name a tensor, a step"),
    ({**GOOD, "steps": [step(TURN, inputs={"x": "y.z.w"})]}, "t.x", "must name a tensor, a step"),
    ({**GOOD, "steps": [step(TURN, inputs={"x": "later"})]}, "t.x", "an earlier step (x), got 'later'"),
    ({**GOOD, "steps": [step(TURN, inputs={"x": "t"})]}, "t.x", "an earlier step (x), got 't'"),
    ({**GOOD, "steps": [step(TURN, inputs={"x": "x.out"})]}, "t.x", "an earlier step (x), got 'x.out'"),
    ({**GOOD, "steps": [step(TURN, inputs={"y": "x"})]}, "t.y", "step t (permute): permute has no input 'y'"),
    ({**GOOD, "steps": [step(TURN, params={})]}, "t.dims", "step t (permute): permute needs the parameter dims"),
    ({**GOOD, "steps": [step(TURN, params={"dims": [0, 0]})]}, "t.dims", "step t (permute): dims must name each"),
    ({**GOOD, "steps": [TURN, ADD], "outputs": {"y": "s"}}, "s.b", "step s (transpose-add): b must have shape (2, 3)"),
    ({**GOOD, "steps": [TURN, step(TURN, name="u")]}, "u", "no step and no output uses the step u"),
    ({**GOOD, "outputs": {}}, "outputs", "outputs must map 1 to"),
    ({**GOOD, "outputs": {"a.b": "t"}}, "outputs", "names of outputs"),
    ({**GOOD, "outputs": {"y": "u"}}, "outputs.y", "the output y must come from a tensor or an earlier step (x, t)"),
    ({**GOOD, "outputs": {"y": "t.none"}}, "outputs.y", "which gives out, got 't.none'"),
    ({**GOOD, "outputs": {"y": None}}, "outputs.y", "the output y must name a tensor"),
)  # fmt: skip


@pytest.mark.parametrize(("program", "field", "message"), WRONG)
def test_a_wrong_program_is_refused_before_anything_runs(
    tensor_client: httpx.Client, program: object, field: str, message: str
) -> None:
    before = metrics(tensor_client)

    answer = send(tensor_client, program)

    after = metrics(tensor_client)
    assert message in problem_of(answer, 422, "invalid-input", field)
    kernels = 'warpcall_stage_seconds_count{stage="kernel"}'
    assert after.get(kernels) == before.get(kernels)


def test_an_op_that_is_not_there_is_named_with_its_step(tensor_client: httpx.Client) -> None:
    answer = send(tensor_client, {**GOOD, "steps": [TURN, step(ADD, op="none")]})

    assert problem_of(answer, 404, "not-found", "s.op").startswith("step s: there is no op 'none'")


@pytest.mark.parametrize("name", ["t", "a.b", "2d", ""])
def test_a_tensor_of_a_program_has_a_name_of_its_own(
    tensor_client: httpx.Client, name: str
) -> None:
    answer = send(tensor_client, GOOD, {"x": X, name: X})

    problem_of(answer, 422, "invalid-input", name)


def test_a_tensor_that_nothing_uses_is_refused_before_it_is_read(
    tensor_client: httpx.Client,
) -> None:
    answer = send(tensor_client, GOOD, {"x": X, "y": X})

    detail = problem_of(answer, 422, "invalid-input", "y")
    assert detail == "no step and no output uses the tensor y"


def test_a_program_has_no_other_parameters(tensor_client: httpx.Client) -> None:
    body = save({"x": X}, metadata={"params": json.dumps({"program": GOOD, "dims": [1]})})

    answers = [
        tensor_client.post(PROGRAMS, content=body, headers={"content-type": SAFETENSORS}),
        tensor_client.post(PROGRAMS, json={"inputs": {}}),
    ]

    for answer in answers:
        problem_of(answer, 422, "invalid-input", "program")


def test_a_program_of_many_steps_gives_what_its_steps_give(tensor_client: httpx.Client) -> None:
    steps = [step(TURN, name="s0")]
    steps += [step(TURN, name=f"s{i}", inputs={"x": f"s{i - 1}"}) for i in range(1, 101)]

    answer = send(tensor_client, {"steps": steps, "outputs": {"y": "s100"}})

    np.testing.assert_array_equal(load(answer.content)["y"], X.T)


def test_a_program_beyond_a_lanes_message_is_refused(tensor_client: httpx.Client) -> None:
    steps = [step(TURN, name=f"{'s' * 60}{i}") for i in range(MAX_STEPS)]
    outputs = {f"{'y' * 60}{i}": f"{'s' * 60}{i}" for i in range(MAX_STEPS)}

    answer = send(tensor_client, {"steps": steps, "outputs": outputs})

    assert "must be described in 61440 bytes" in problem_of(answer, 422, "invalid-input", "program")


def test_a_program_that_needs_more_memory_than_there_is_is_refused(
    tensor_client: httpx.Client,
) -> None:
    """4 MB each, which the first step spreads over each other to 128 GB."""
    row, column = np.zeros((1 << 15, 1, 1, 32), np.float32), np.zeros((1 << 15, 32, 1), np.float32)
    wide = {"name": "wide", "op": "transpose-add", "inputs": {"a": "a", "b": "b"}}
    narrow = {"name": "n", "op": "isin", "inputs": {"elements": "wide", "test_elements": "t"}}
    program = {"steps": [wide, narrow], "outputs": {"y": "n"}}

    answer = send(tensor_client, program, {"a": row, "b": column, "t": X[0]})

    detail = problem_of(answer, 413, "too-large", "n")
    assert re.match(
        r"program needs 17\d{10} bytes on cpu at step n, it has \d+ for tensors", detail
    )


def test_a_step_that_gives_a_dtype_that_calls_do_not_have_is_refused(
    tensor_client: httpx.Client,
) -> None:
    add = {"name": "s", "op": "transpose-add", "inputs": {"a": "a", "b": "b"}}
    program = {"steps": [add], "outputs": {"y": "s"}}
    terms = {"a": np.ones((1, 2), np.complex64), "b": np.ones((2, 1), np.float64)}

    answer = send(tensor_client, program, terms)

    detail = problem_of(answer, 422, "invalid-input", None)
    assert detail.startswith("step s (transpose-add): out would be complex128")


def test_nothing_of_a_refused_program_is_kept(tensor_client: httpx.Client) -> None:
    wrong = {"steps": [TURN, ADD], "outputs": {"y": "s"}}

    answer = send(tensor_client, wrong, None, **{"X-Warpcall-Store": "*=a"})

    assert answer.status_code == 422
    assert listed(tensor_client) == []
