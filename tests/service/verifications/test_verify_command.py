"""The command `warpcall verify`, and `verify` of both clients, with a server that runs the sources."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.servers import Server, running_server
from tests.service.uploads.requests import SETTINGS
from tests.service.verifications import sources
from warpcall import AsyncClient, Client, InvalidInput, Verification
from warpcall._cli import main

pytestmark = pytest.mark.slow

Command = Callable[..., tuple[int, str, str]]
OPTIONS = ("--shape", "8x100x70", "--dtype", "bf16", "--dims", "2,1,0")
CASE: dict[str, Any] = {"shape": [8, 100, 70], "dtype": "BF16", "params": {"dims": [2, 1, 0]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("data")
    settings = {**SETTINGS, "WARPCALL_DATA_DIR": str(folder), "WARPCALL_EXPLAIN_S": "60"}
    with running_server(settings) as running:
        yield running


@pytest.fixture
def warpcall(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Command:
    monkeypatch.setenv("WARPCALL_URL", server.url)
    monkeypatch.chdir(tmp_path)
    Path("turn.py").write_text(sources.PERMUTE)
    Path("softmax.py").write_text(sources.SOFTMAX)
    Path("conv.cu").write_text(sources.CONV)
    Path("windw.cu").write_text(sources.CONV.replace("window[i] =", "windw[i] ="))
    Path("wrong.json").write_text('{"launches": [{"kernel": "turn"}]}')
    Path("broken.py").write_text("def permute(x, dims:\n    pass\n")
    Path("bare.cu").write_text('extern "C" __global__ void turn(float* x) {}\n')

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["warpcall", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


def test_what_a_call_launches_is_printed_for_each_case(warpcall: Command) -> None:
    code, out, err = warpcall(
        "verify",
        "turn.py",
        "permute",
        *OPTIONS[:1],
        "8x100x70,4x4x4",
        *OPTIONS[2:],
        "--gpu",
        "h100",
    )

    assert (code, err) == (0, "")
    head, case, first, second, end, other, *rest = out.splitlines()
    assert head.startswith("turn.py: permute for sm_90, Triton 3.")
    assert case == "permute x=BF16[8,100,70] dims=2,1,0"
    launch = "launch _transpose_kernel, grid {}, 128 threads, 8 KiB of dynamic shared memory, "
    assert first.startswith(f"  1. {launch.format(26)}")
    assert second.startswith(f"  2. {launch.format(140)}")
    assert second.endswith(" registers")
    assert end == "  can be verified: 2 compiled kernels, 109 KiB scratch memory"
    assert other == "permute x=BF16[4,4,4] dims=2,1,0"
    assert "timing needs a GPU, and this server has none" in rest
    at = rest.index("@warpcall.launches("), rest.index(")") + 1
    decorator = "\n".join(rest[slice(*at)])
    declared: dict[str, Any] = {}
    exec(f"import warpcall\n{decorator}\ndef permute(x, dims): ...", declared)  # noqa: S102
    assert declared["permute"].__warpcall_launches__ == json.loads(rest[-1])
    assert [one["kernel"] for one in json.loads(rest[-1])["launches"]] == ["_transpose_kernel"] * 2


def test_configurations_are_listed(warpcall: Command) -> None:
    code, out, _ = warpcall(
        "verify", "softmax.py", "masked-softmax", "--shape", "100x1000", "--dtype", "fp32"
    )

    lines = out.splitlines()
    assert code == 0
    assert lines[2] == "  1. one of 5 configurations, of which the fastest is chosen:"
    assert lines[3].startswith("     ROWS: 1, num_warps: 4: launch _softmax_kernel, grid 100, 128 ")
    assert lines[8] == "  can be verified: 5 compiled kernels, no scratch memory"


def test_a_kernel_in_cuda_is_described_or_its_errors_are_shown(warpcall: Command) -> None:
    options = ("conv", "--shape", "2x8x500", "--size", "taps=3", "--dtype")

    code, out, _ = warpcall("verify", "conv.cu", *options, "bf16")
    other = warpcall("verify", "conv.cu", *options, "fp16")
    wrong = warpcall("verify", "windw.cu", *options, "bf16")
    declared = warpcall("verify", "conv.cu", *options, "bf16", "--launches", "wrong.json")

    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("conv.cu: conv for sm_90, NVRTC 1")
    assert lines[3].startswith(
        "     THREADS=128, TILE=1024: launch light_conv, grid 16, 128 threads, "
    )
    assert other[0] == 1
    assert (
        "requires[0]: the kernels are not for this case: 'x.dtype == BF16' is not true" in other[1]
    )
    assert wrong[0] == 1
    assert 'kernel.cu(70): error: identifier "windw" is undefined\n' in wrong[1]
    assert (declared[0], declared[1]) == (2, "")
    assert declared[2] == "warpcall: conv.cu: launches[0] lacks grid\n"


def test_the_exit_status_says_whether_all_cases_can_be_verified(warpcall: Command) -> None:
    refused = warpcall("verify", "turn.py", "permute", *OPTIONS[:-1], "0,1,2")
    wrong = warpcall("verify", "broken.py", "permute", *OPTIONS)
    undeclared = warpcall("verify", "bare.cu", "permute", *OPTIONS)
    unknown = warpcall("verify", "turn.py:other", "permute", *OPTIONS)
    unshaped = warpcall("verify", "turn.py", "permute", "--dtype", "bf16", "--dims", "0")
    odd_shape = warpcall("verify", "turn.py", "permute", "--shape", "4x4", *OPTIONS[2:])

    assert refused[0] == 1
    assert "  cannot be verified: line 53: ValueError: only dims 2,1,0 of dtypes" in refused[1]
    assert (wrong[0], wrong[2]) == (
        2,
        "warpcall: broken.py: line 1: SyntaxError: '(' was never closed\n",
    )
    assert (undeclared[0], undeclared[1]) == (2, "")
    assert undeclared[2].startswith("warpcall: bare.cu is CUDA C++ and has no declaration")
    assert unknown[0] == 2
    assert unknown[2].startswith("warpcall: turn.py: it has no function other")
    assert (unshaped[0], unshaped[2][:26]) == (2, "warpcall: --shape must be ")
    assert (odd_shape[0], odd_shape[2][:25]) == (2, "warpcall: --shape, --dtyp")


def test_both_clients_verify_and_the_json_fits_its_schema(
    warpcall: Command, server: Server
) -> None:
    _, out, _ = warpcall("verify", "turn.py", "permute", *OPTIONS, "--json")
    schemas = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]

    async def ask() -> Verification:
        async with AsyncClient(server.url) as gpu:
            return await gpu.verify("permute", [CASE], "turn.py", gpu="H200")

    with Client(server.url) as gpu:
        found = gpu.verify("permute", CASE, "turn.py")
        with pytest.raises(InvalidInput, match="no function other"):
            gpu.verify("permute", CASE, "turn.py", function="other")

    jsonschema_rs.validate(
        {"$ref": "#/components/schemas/Verification", "components": {"schemas": schemas}},
        json.loads(out),
    )
    assert found.to_dict() == json.loads(out)
    assert asyncio.run(ask()) == found
    assert found.verifiable
    (row,) = found.to_rows()
    assert (row["launches"], row["kernels"], row["scratch_bytes"]) == (2, 2, 112_000)
    assert str(found).startswith("permute: permute for sm_90, Triton ")
