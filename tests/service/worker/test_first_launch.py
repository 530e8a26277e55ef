"""What Triton does before its first launch can be done ahead."""

from __future__ import annotations

import builtins

import pytest
from triton.backends.nvidia import driver
from triton.runtime.cache import triton_key

from warpcall_kernels.compile.first_launch import prepare_first_launch


def test_the_first_launch_does_not_read_tritons_files_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[bool] = []
    monkeypatch.setattr(driver, "CudaUtils", lambda: loaded.append(True))  # it needs libcuda
    triton_key.cache_clear()

    prepare_first_launch()

    monkeypatch.setattr(builtins, "open", None)
    assert triton_key()
    assert loaded == [True]
