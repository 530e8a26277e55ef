"""Problems that are made of files for KernelBench and gpu-mode, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.e2e.imported_files import (
    ACTIVATION,
    LINEAR,
    LINEAR_NEW,
    SCORE_REFERENCE,
    SCORE_SUBMISSION,
    TYPES,
    UTILS,
)
from warpcall_kernels.execution.setup import described
from warpcall_kernels.execution.spec import make_case
from warpcall_kernels.imported import draws, gpu_mode, kernelbench
from warpcall_kernels.imported.files import Files
from warpcall_kernels.op.errors import InvalidInput

CPU = torch.device("cpu")
TASK = {"reference.py": SCORE_REFERENCE, "task.py": TYPES, "utils.py": UTILS}
VALUES: dict[str, list[Any]] = {"kind": ["plain", "squared"], "bias": [False, True]}
SIZES = {"rows": 5, "kind": 0, "bias": 0}


def origins(make: Callable[[], Any]) -> list[Any]:
    found = draws.trace(make, (), memory=True)
    return [(s.values, s.scale, s.shift, s.layout) for s in found.samples.values()]


def test_what_random_functions_return_is_drawn_likewise() -> None:
    def make() -> list[Tensor]:
        generator = torch.Generator("cuda").manual_seed(3)
        return [
            torch.randn(3, 4, device="cuda", generator=generator).half(),
            torch.rand(3, 4) * 2 - 1,
            1 - torch.rand(3).cuda().to(torch.float64) / 4,
            -torch.randn(4, 3).T,
            torch.randn(1, 3).expand(4, 3),
            torch.empty(3).normal_(1.0, 0.5),
            torch.empty(3).uniform_(-2, 2),
        ]

    assert origins(make) == [
        ("normal", 1.0, 0.0, "contiguous"),
        ("uniform", 2.0, -1.0, "contiguous"),
        ("uniform", -0.25, 1.0, "contiguous"),
        ("normal", -1.0, 0.0, "transposed"),
        ("normal", 1.0, 0.0, "expanded"),
        ("normal", 0.5, 1.0, "contiguous"),
        ("uniform", 4.0, -2.0, "contiguous"),
    ]
    integers = draws.trace(lambda: [torch.randint(2, 9, (3,)).bool()], (), memory=True)
    (sample,) = integers.samples.values()
    assert (sample.values, sample.low, sample.high) == ("integers", 2, 9)
    assert sample.dtype == torch.bool


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.randn(3).softmax(0), "softmax"),
        (lambda: torch.randperm(3), "randperm"),
        (lambda: torch.randn(3) * torch.randn(3), "mul"),
        (lambda: torch.tril(torch.rand(3, 3)), "tril"),
        (lambda: torch.randn(3, 4, 5).permute(1, 0, 2), "strides"),
    ],
)
def test_other_random_values_are_refused(make: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        draws.trace(lambda: [make()], (), memory=True)


def test_constants_have_their_values_and_memory_is_new_in_each_call() -> None:
    def make() -> Any:
        mask = torch.zeros(3)
        mask[1] = 1
        return {"x": torch.randn(3)}, mask, torch.zeros(2), torch.arange(3), 7

    traced = draws.trace(make, (), memory=True)
    fixed = draws.constants(make, CPU, memory=True)
    (name,) = traced.samples
    one, two = (
        draws.filled(traced.tree, {name: torch.ones(3)}, fixed, CPU, lambda dtype: dtype)
        for _ in range(2)
    )

    assert one[0]["x"].tolist() == [1, 1, 1]
    assert [one[i].tolist() for i in (1, 2, 3)] == [[0, 1, 0], [0, 0], [0, 1, 2]]
    assert one[4] == 7
    assert one[1] is two[1]
    assert one[2].data_ptr() != two[2].data_ptr()


def test_constants_of_files_change_with_what_follows_from_them(tmp_path: Path) -> None:
    files = Files(tmp_path, {"a.py": "import b\nN = 3\nM = 2 * N\n", "b.py": "N = 3\n"})

    default, other = files.module("a.py", {"N": 3}), files.module("a.py", {"N": 1000})

    assert (default.M, default.b.N) == (6, 3)
    assert (other.M, other.b.N) == (2000, 1000)
    assert files.module("a.py", {"N": 3}) is default


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_both_models_have_the_same_weights_in_each_dtype_and_size(
    tmp_path: Path, dtype: str
) -> None:
    texts, sizes = {"linear.py": LINEAR, "new.py": LINEAR_NEW}, {"batch": 128, "in_features": 4096}
    op = kernelbench.problem(tmp_path, texts, "linear.py", sizes).op("ann/linear")
    setup, compute = kernelbench.implementation(
        tmp_path / "new", texts, "linear.py", "new.py", [*sizes]
    )
    case = make_case(op, {"sizes": {"batch": 4, "in_features": 16}, "dtype": dtype})
    x = {name: s.draw(torch.Generator().manual_seed(1)) for name, s in case.inputs.items()}

    with torch.no_grad():
        state = setup(**described(x, CPU), **case.params)
        ours = compute(**x, **case.params, state=state)
        theirs = op.reference(**x, **case.params)
        wide = op.reference(**{name: t.double() for name, t in x.items()}, **case.params)

    assert ours.shape == (4, 8)
    assert ours.dtype == theirs.dtype == x["x"].dtype
    assert wide.dtype == torch.float64
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(ours.double(), wide, rtol=0.02, atol=0.02)


def test_a_submission_gets_what_the_reference_gets(tmp_path: Path) -> None:
    op = gpu_mode.problem(tmp_path, TASK, SIZES, VALUES, 0.01).op("ann/score")
    texts = {**TASK, "mine.py": SCORE_SUBMISSION}
    setup, compute = gpu_mode.implementation(tmp_path / "mine", texts, "mine.py", [*SIZES], VALUES)

    for sizes in ({"rows": 7}, {"rows": 6, "kind": 1, "bias": 1}):
        case = make_case(op, {"sizes": sizes})
        x = {name: s.draw(torch.Generator().manual_seed(1)) for name, s in case.inputs.items()}
        state = setup(**described(x, CPU), **case.params)
        ours = compute(**x, **case.params, state=state)
        wide = {n: t.double() if t.is_floating_point() else t for n, t in x.items()}
        torch.testing.assert_close(ours, op.reference(**x, **case.params))
        expected = op.reference(**wide, **case.params)
        assert expected.dtype == torch.float64
        torch.testing.assert_close(ours.double(), expected)
    assert op.tolerance is not None
    assert [*case.inputs] == ["x", "which"]


def test_random_layers_in_training_mode_are_refused(tmp_path: Path) -> None:
    text = ACTIVATION.replace("        super().__init__()\n", "        super().__init__()\n"
                              "        self.drop = nn.Dropout(0.1)\n", 1)  # fmt: skip

    with pytest.raises(InvalidInput, match=r"Dropout\(p=0.1.*results are random"):
        kernelbench.problem(tmp_path, {"a.py": text}, "a.py", {}).op("ann/a")


def test_a_size_that_is_passed_is_chosen_as_a_size_only(tmp_path: Path) -> None:
    sizes = {"batch_size": 4, "dim": 8}
    op = kernelbench.problem(tmp_path, {"a.py": ACTIVATION}, "a.py", sizes).op("ann/a")

    case = make_case(op, {"sizes": {"dim": 3}})
    again = make_case(op, case.spec)

    assert case.params == {"batch_size": 4, "dim": 3}
    assert (again.key, again.inputs) == (case.key, case.inputs)
    assert case.key == "ann/a x=F32[4,3]:uniform*4-2 batch_size=4 dim=3"
    with pytest.raises(InvalidInput, match="dim is a size of ann/a: choose it with `sizes`"):
        make_case(op, {"params": {"dim": 3}})
