"""The recorder makes launch plans of CUDA C++, through the requests of a job's process."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.kernels.verified import cuda_sources as sources
from tests.kernels.verified.recording import Recording, empty, meta
from warpcall_kernels.execution.process import RemoteFailed
from warpcall_kernels.verified.plan import Launch, Place


@pytest.fixture(scope="module")
def recording(pytestconfig: pytest.Config) -> Iterator[Recording]:
    if pytestconfig.getoption("--device") != "cpu":
        pytest.importorskip("cuda.bindings.nvrtc")
    made = Recording()
    yield made
    made.end()


def load(recording: Recording, source: str, **changes: Any) -> None:
    declaration: dict[str, Any] = copy.deepcopy(sources.ROW_SUMS_LAUNCHES)
    declaration["launches"][1].update(changes)
    # `out0` is how the harness names outputs.
    declaration["launches"][1]["arguments"][1] = "out0"
    recording.load(source, "", language="cuda", declaration=declaration)


X = empty(10, 300, dtype=torch.bfloat16)


def test_a_case_has_its_plan_with_and_without_an_optional_input(recording: Recording) -> None:
    load(recording, sources.ROW_SUMS)

    with_bias = recording.plan({"x": X, "bias": empty(10)}, [meta(10)], {"scale": 0.5})
    without = recording.plan({"x": X[:, :128]}, [meta(10)], {"scale": 2})

    first = with_bias.steps[0][0].actions[1]
    assert isinstance(first, Launch)
    assert first.arguments[3:] == (0.5, Place(1, 0))
    assert [buffer.input for buffer in with_bias.buffers] == ["x", "bias", "", ""]
    first = without.steps[0][0].actions[1]
    assert isinstance(first, Launch)
    assert first.arguments[3:] == (2.0, None)
    assert without.buffers[0].nbytes == 2 * (300 * 9 + 128)  # a slice, as it lies in memory
    assert first.grid == (1, 10, 1)


@pytest.mark.parametrize(
    ("source", "changes", "status", "error", "more"),
    [
        (
            sources.ROW_SUMS.replace("float sum = 0;", "float sum = zero;"),
            {},
            "compile_error",
            'kernel.cu(8): error: identifier "zero" is undefined',
            "kernel.cu(22): error",
        ),
        (sources.ROW_SUMS, {"kernel": "add"}, "error", "the source has no kernel add", None),
        (sources.ROW_SUMS, {"grid": []}, "error", "launches[1].grid must be a list", None),
        (sources.ROW_SUMS, {"grid": ["-1"]}, "error", "launches[1].grid[0]: '-1' must be", None),
        (
            sources.ROW_SUMS.replace("float sum = 0;", 'float sum = printf("a");'),
            {},
            "error",
            "it prints (vprintf)",
            None,
        ),
    ],
)
def test_what_is_wrong_comes_with_its_line_or_its_member(
    recording: Recording,
    source: str,
    changes: dict[str, Any],
    status: str,
    error: str,
    more: str | None,
) -> None:
    load(recording, source, **changes)

    with pytest.raises(RemoteFailed) as caught:
        recording.plan({"x": X}, [meta(10)], {"scale": 0.5})

    assert caught.value.status == status
    assert error in str(caught.value)
    if more is None:
        assert caught.value.traceback is None
    else:
        assert more in (caught.value.traceback or "")
