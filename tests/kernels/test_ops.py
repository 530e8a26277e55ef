"""Every op on each of its cases: its results, its declaration, and how it works with torch."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import warpcall_kernels
from tests.kernels import suite
from warpcall_kernels import Op, op_named, ops
from warpcall_kernels.op.cases import Case, Sample
from warpcall_kernels.op.declaration import Meta

MAX_LARGE_BYTES = 3 << 30  # the fp64 reference of a larger case would not fit beside it
OPCHECKS = 2  # cases an op: opcheck traces and takes a second each
DIFFERENTIATED = 10  # cases an op whose gradient is compared with finite differences
BRIEF_ELEMENTS = 2048  # inputs of these, of cases that are called many times
EXPANDED = 5  # cases an op with an expanded gradient, each of which is four calls


def _cases(size: str) -> list[tuple[Op, Case]]:
    return [(op, case) for op in ops().values() for case in op.cases if case.size == size]


def _spread(pairs: Iterable[tuple[Op, Case]], count: int) -> list[tuple[Op, Case]]:
    """About `count` cases of each op, evenly spread over its list; near each, one that takes a short time."""
    by_op: dict[str, list[tuple[Op, Case]]] = {}
    for op, case in pairs:
        by_op.setdefault(op.name, []).append((op, case))
    found = []
    for own in by_op.values():
        step = max(1, -(-len(own) // count))
        parts = [own[begin : begin + step] for begin in range(0, len(own), step)]
        found += [next((pair for pair in part if _is_brief(pair[1])), part[0]) for part in parts]
    return found


def _is_brief(case: Case) -> bool:
    return sum(math.prod(sample.shape) for sample in case.inputs.values()) <= BRIEF_ELEMENTS


def _comparable(sample: Sample) -> bool:
    """Whether opcheck can compare it: NaN is a difference to it, and torch does not multiply fp8."""
    fp8 = sample.dtype.is_floating_point and sample.dtype.itemsize == 1
    return sample.values != "special" and not fp8


def _each(pairs: Iterable[tuple[Op, Case]], quick: int | None = None) -> pytest.MarkDecorator:
    """One test for each pair. All but the first `quick` cases of each op are slow; None: none is."""
    return pytest.mark.parametrize(("op", "case"), suite.case_params(pairs, quick))


every_op = pytest.mark.parametrize("op", [pytest.param(op, id=name) for name, op in ops().items()])
every_case = _each(_cases("small"))
every_large_case = _each(_cases("large"))
comparable = [(op, c) for op, c in _cases("small") if all(map(_comparable, c.inputs.values()))]
some_cases = _each(_spread(comparable, OPCHECKS), quick=2)
with_gradient = [pair for pair in _cases("small") if suite.has_gradient(*pair)]
gradient_cases = _each(_spread(with_gradient, DIFFERENTIATED), quick=4)
some_gradient_cases = _each(_spread(with_gradient, EXPANDED), quick=4)


def test_there_are_ops() -> None:
    assert ops()


def test_an_op_is_found_by_its_name_alone() -> None:
    assert all(op_named(name) is op for name, op in ops().items())
    for name in ("masked_softmax", "op", "_conv", ""):
        with pytest.raises(KeyError):
            op_named(name)


@every_case
def test_a_call_is_right_as_promised_and_leaves_its_inputs(op: Op, case: Case, device: str) -> None:
    run = suite.run(op, case, device)
    promised = op.check(suite.metas(run.given), run.params)

    assert run.outputs.keys() == suite.reference_of(op, run.given, run.params).keys()
    suite.assert_right(op, run.given, run.params, run.outputs)
    assert suite.metas(run.outputs) == promised
    assert list(run.outputs) == [o.name for o in op.outputs if o.name in promised]
    assert all(t.is_contiguous() and t.device.type == device for t in run.outputs.values())
    for name, tensor in run.after.items():
        suite.assert_bits_equal(tensor, run.given[name])
    storages = {t.untyped_storage().data_ptr() for t in run.after.values() if t.numel()}
    assert not storages & {t.untyped_storage().data_ptr() for t in run.outputs.values()}


@every_case
def test_compute_names_the_outputs(op: Op, case: Case, device: str) -> None:
    run = suite.run(op, case, device)

    computed = op.compute(run.given, run.params)

    assert suite.metas(computed) == op.check(suite.metas(run.given), run.params)
    suite.assert_right(op, run.given, run.params, computed)


@every_op
def test_the_traffic_of_each_case_is_at_least_the_outputs_and_checked_parameters_stay(
    op: Op,
) -> None:
    for case in op.cases:
        params = op.check_params(case.params)
        metas = case.metas() if case.size == "large" else case.tensors()
        inputs = suite.metas(metas)

        moved = op.bytes_moved(**inputs, **params)

        assert moved >= sum(m.nbytes for m in op.check(inputs, params).values()), case.name
        assert op.check_params(params) == params, case.name


@pytest.mark.slow
@some_cases
def test_torch_accepts_the_custom_op(op: Op, case: Case, device: str) -> None:
    inputs = case.tensors(device)
    differentiable = all(inputs[n].is_floating_point() for n in op.differentiable if n in inputs)
    for name in op.differentiable if differentiable else ():
        if name in inputs:
            inputs[name] = inputs[name].clone().requires_grad_()
    with suite.Recorder() as recorder:
        op.function(**inputs, **op.check_params(case.params))

    assert recorder.calls, "the function must go through its custom op when something listens"
    for call in recorder.calls:
        torch.library.opcheck(*call)


@gradient_cases
def test_the_gradient_is_that_of_finite_differences(op: Op, case: Case, device: str) -> None:
    inputs = suite.leaves(op, case, device)
    names, tensors = zip(*inputs.items(), strict=True)
    params = op.check_params(case.params)

    def function(*given: torch.Tensor) -> Any:
        return op.function(**dict(zip(names, given, strict=True)), **params)

    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


@some_gradient_cases
def test_an_expanded_gradient_is_taken(op: Op, case: Case, device: str) -> None:
    params = op.check_params(case.params)
    expanded, full = (suite.leaves(op, case, device) for _ in range(2))
    ones = [t.new_ones(()).expand(t.shape) for t in _outputs(op, expanded, params)]

    torch.autograd.backward(_outputs(op, expanded, params), ones)
    torch.autograd.backward(_outputs(op, full, params), [g.contiguous() for g in ones])

    for name in op.differentiable:
        if name in full:
            torch.testing.assert_close(expanded[name].grad, full[name].grad)


def _outputs(op: Op, inputs: dict[str, torch.Tensor], params: dict[str, Any]) -> Any:
    return list(suite.by_name(op, op.function(**inputs, **params)).values())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch 2.11's own
@every_op
def test_torch_compile_takes_the_function_whole(op: Op, device: str) -> None:
    case = next(c for c in op.cases if all(0 not in s.shape for s in c.inputs.values()))
    inputs, params = case.tensors(device), op.check_params(case.params)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda tensors: op.function(**tensors, **params), fullgraph=True, backend="aot_eager"
    )

    outputs = suite.by_name(op, compiled(inputs))

    assert outputs
    for name, output in outputs.items():
        suite.assert_bits_equal(output, suite.run(op, case, device).outputs[name])


@every_op
def test_the_description_is_complete_and_plain_data(op: Op) -> None:
    described = json.loads(json.dumps(op.describe()))

    assert described["name"] == op.name
    assert described["summary"]
    assert described["equivalent"]
    assert len(described["source_sha256"]) == 64
    names = [x["name"] for part in ("inputs", "outputs", "params") for x in described[part]]
    assert len(names) == len(set(names))
    assert all(x["doc"] for part in ("inputs", "outputs", "params") for x in described[part])
    assert all(i["dtypes"] for i in described["inputs"])
    assert all(
        size["default"] in (size["choices"] or [size["default"]]) and size["doc"]
        for size in described["sizes"]
    )
    assert len(described["sizes"]) == len(op.sizes)
    required = {p.name: op.cases[0].params[p.name] for p in op.params if p.required}
    assert op.check_params(required).keys() == {p.name for p in op.params}


@every_op
def test_the_cases_are_many_and_well_named(op: Op) -> None:
    names = [case.name for case in op.cases]
    small = [case for case in op.cases if case.size == "small"]

    assert len(names) == len(set(names))
    assert len(small) >= 10
    assert len(names) > len(small), "benchmarks need large cases"


@every_large_case
def test_large_cases_equal_the_reference(
    op: Op, case: Case, device: str, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--large"):
        pytest.skip("large cases run with --large")
    if op.bytes_moved(**_shapes(case), **op.check_params(case.params)) > MAX_LARGE_BYTES:
        pytest.skip("its fp64 reference would not fit")
    suite.run.cache_clear()
    run = suite.run(op, case, device)

    expected = suite.reference_of(op, run.given, run.params)

    assert run.outputs.keys() == expected.keys()
    suite.assert_right(op, run.given, run.params, run.outputs)


def _shapes(case: Case) -> dict[str, Any]:
    return {name: Meta(s.shape, s.dtype) for name, s in case.inputs.items()}


NEW_OP = '''
"""out = -x."""
from warpcall_kernels.op.cases import Case, Sample
from warpcall_kernels.op.declaration import Input, Meta, Op, Output
import torch


def negate(x: torch.Tensor) -> torch.Tensor:
    """Negate."""
    return -x


OP = Op(
    name="negate",
    function=negate,
    reference=negate,
    infer=lambda x: {"out": Meta(tuple(x.shape), x.dtype)},
    bytes_moved=lambda x: 2 * x.nbytes,
    inputs=(Input("x", (torch.float32,), "[...]", "what to negate"),),
    outputs=(Output("out", "[...]", "-x"),),
    equivalent="-x",
    cases=(Case("one", {"x": Sample((1,), torch.float32)}),),
)
'''


@pytest.fixture
def folder_of_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder whose files are modules of `warpcall_kernels` as well."""
    monkeypatch.setattr(warpcall_kernels, "__path__", [*warpcall_kernels.__path__, str(tmp_path)])
    ops.cache_clear()
    yield tmp_path
    ops.cache_clear()


def test_a_new_file_is_an_op_without_any_other_edit(folder_of_ops: Path, device: str) -> None:
    (folder_of_ops / "negate.py").write_text(NEW_OP)

    op = ops()["negate"]
    cases = [(op.name, case.name) for op, case in _cases("small")]

    assert ("negate", "one") in cases
    run = suite.run(op, op.cases[0], device)
    suite.assert_bits_equal(run.outputs["out"], -run.given["x"])


def test_one_op_is_found_without_importing_the_others(folder_of_ops: Path) -> None:
    every_one = [*ops().values()]
    ops.cache_clear()
    (folder_of_ops / "negate.py").write_text(NEW_OP)
    (folder_of_ops / "not_imported.py").write_text("raise AssertionError('it is imported')")

    package = ast.parse(Path(warpcall_kernels.__file__).read_text())
    imported = {node.module for node in ast.walk(package) if isinstance(node, ast.ImportFrom)}

    assert op_named("negate").name == "negate"
    with pytest.raises(AssertionError, match="it is imported"):
        ops()
    assert not imported & {op.function.__module__ for op in every_one}


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("sums.py", "TOTAL = 1", r"sums.py must declare OP = Op\(...\)"),
        ("minus_one.py", NEW_OP, "minus_one.py must declare the op 'minus-one'.* got 'negate'"),
    ],
)
def test_a_file_that_is_not_the_op_of_its_name_is_refused(
    file: str, source: str, message: str, folder_of_ops: Path
) -> None:
    (folder_of_ops / file).write_text(source)

    with pytest.raises((TypeError, ValueError), match=message):
        ops()
