"""Tests that only a GPU can run; elsewhere they are skipped."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _on_a_gpu(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs --device cuda")
