"""What Triton does before its first launch can be done ahead."""

from __future__ import annotations

import builtins
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.nvidia import driver
from triton.runtime.cache import triton_key

from warpcall_bench.programs import upload_main
from warpcall_kernels.compile import first_launch
from warpcall_kernels.compile.first_launch import prepare_first_compilation, prepare_first_launch


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


def threads() -> set[str]:
    return {one.name for one in Path("/proc/self/task").iterdir()}


def test_a_first_compilation_ahead_leaves_no_files_and_no_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache, compiled = tmp_path / "cache", []
    monkeypatch.setattr(driver, "CudaUtils", lambda: None)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = threads()
    compile_source = triton.compile

    def noting(*given: Any, **named: Any) -> Any:
        compiled.append(compile_source(*given, **named))
        return compiled[-1]

    monkeypatch.setattr(triton, "compile", noting)
    prepare_first_compilation.cache_clear()

    prepare_first_compilation()
    prepare_first_compilation()

    (kernel,) = compiled
    assert kernel.asm["cubin"].startswith(b"\x7fELF"), "all of Triton's compiler has run"
    assert [*tmp_path.iterdir()] == [], "another account could not write there"
    assert os.environ["TRITON_CACHE_DIR"] == str(cache)
    assert triton.knobs.cache.dir == str(cache)
    assert threads() <= before, "the account of a thread is not that of its process"


@pytest.mark.parametrize(("device", "count"), [("cuda:0", 1), ("cpu", 0)])
def test_an_upload_process_compiles_ahead_for_a_gpu_only(
    monkeypatch: pytest.MonkeyPatch, device: str, count: int
) -> None:
    asked: list[bool] = []

    def fail() -> None:
        asked.append(True)
        raise RuntimeError("there is no compiler")

    monkeypatch.setattr(first_launch, "prepare_first_compilation", fail)
    monkeypatch.setattr(sys, "argv", ["upload_main", f"--device={device}", "--threads=0"])

    upload_main.import_ahead()

    assert asked == [True] * count
