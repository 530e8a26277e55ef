"""Fixtures of the kernels' tests: a checked interpreter, and memory that hides no missed store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.kernels.thinning import thinned_out

if TYPE_CHECKING:
    from torch import Tensor

    from warpcall_kernels.op.launch import Launch

LARGE_BYTES = 1 << 30  # of a GPU's cached memory: a test that leaves more gives it back


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "cpu":
        import triton  # noqa: F401  # TRITON_INTERPRET is set

        from warpcall_kernels import interpreter

        interpreter.mend()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `pytest.mark.thinned` allows, if kernels are interpreted."""
    if config.getoption("--device") == "cpu":
        left_out = thinned_out(items)
        config.hook.pytest_deselected(items=left_out)
        ids = {id(item) for item in left_out}
        items[:] = [item for item in items if id(item) not in ids]


@pytest.fixture(autouse=True, scope="session")
def _one_thread(pytestconfig: pytest.Config) -> None:
    """Compute references with one thread: idle threads of torch spin, and take the time of other tests."""
    import torch  # not above: this file is read before TRITON_INTERPRET is set

    if pytestconfig.getoption("--device") == "cpu":
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _memory_has_no_luck() -> Iterator[None]:
    """Fill every `torch.empty` with NaN (integers: their maximum), so that a missed store fails.

    The random numbers are also the same in each run, so that a failure can be repeated.
    tests/gpu/test_properties.py draws new ones in each run and prints what it drew.
    """
    import torch

    torch.manual_seed(0)
    before = torch.get_deterministic_debug_mode()
    # `use_deterministic_algorithms` is the same, and imports torch's compiler: 2 s in each process.
    torch.set_deterministic_debug_mode("warn")
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.fixture(autouse=True)
def _a_small_cache_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a measurement on a CPU overwrite 1 MiB before each sample, as if its cache had so much.

    Short calls are repeated in a sample until their inputs fill it, and a cache of 32 MiB takes 32 times as long.
    """
    from warpcall_kernels.execution import clock

    monkeypatch.setattr(clock, "MAX_CPU_CACHE", 1 << 20)


@pytest.fixture(autouse=True)
def _large_memory_is_given_back(device: str) -> Iterator[None]:
    """Give a GPU's cached memory back after a test that took much, for the tests of other processes."""
    import torch

    yield
    if device == "cuda" and torch.cuda.memory_reserved() > LARGE_BYTES:
        torch.cuda.empty_cache()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches that the test has made so far."""
    from warpcall_kernels.op.launch import Launch

    launches: list[Launch] = []
    launch = Launch.__call__

    def note(self: Launch, *tensors: Tensor | None) -> None:
        launches.append(self)
        launch(self, *tensors)

    monkeypatch.setattr(Launch, "__call__", note)
    return launches


@pytest.fixture
def compiles_for(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[int]:
    """Plan as `compile/warm.py` does for this compute capability."""
    import triton

    from warpcall_kernels.compile.warm import CompileOnlyDriver
    from warpcall_kernels.op import launch

    capability: int = request.param
    active = triton.runtime.driver.active
    monkeypatch.setattr(launch, "_takes_metas", True)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    triton.runtime.driver.set_active(CompileOnlyDriver(capability))
    yield capability
    triton.runtime.driver.set_active(active)


@pytest.fixture
def many_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let rows of masked softmax take the variants of many rows, however few a test has."""
    from warpcall_kernels import masked_softmax, masked_softmax_backward  # as above
    from warpcall_kernels._softmax import constants as softmax_constants

    for name in ("SHORT_ROWS", "TILE_PROGRAMS", "FEW_ROWS"):
        monkeypatch.setattr(softmax_constants, name, 1)
    monkeypatch.setattr(softmax_constants, "FEW_LONG_ROWS", dict.fromkeys((2, 4, 8), 1))
    plans = (masked_softmax._plan, masked_softmax_backward._plan)
    for plan in plans:
        plan.cache_clear()
    yield
    for plan in plans:
        plan.cache_clear()
