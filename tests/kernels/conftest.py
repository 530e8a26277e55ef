"""Kernels are tested on trustworthy ground: a checked interpreter, and no lucky memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


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
