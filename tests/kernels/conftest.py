"""Kernels are tested on trustworthy ground: a checked interpreter, and no lucky memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch import Tensor

    from warpcall_kernels._torch import Launch


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "cpu":
        from tests.kernels import interpreter

        interpreter.install()


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan() -> Iterator[None]:
    """Fill every `torch.empty` with NaN (integers: their maximum), so that a missed store fails."""
    import torch  # not above: this file is read before TRITON_INTERPRET is set

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches of the test so far."""
    from warpcall_kernels._torch import Launch

    launches: list[Launch] = []
    launch = Launch.__call__

    def note(self: Launch, *tensors: Tensor | None) -> None:
        launches.append(self)
        launch(self, *tensors)

    monkeypatch.setattr(Launch, "__call__", note)
    return launches
