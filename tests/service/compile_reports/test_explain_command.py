"""The command `warpcall explain`, and `explain` of both clients, with a server that makes reports."""

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
from tests.service.compile_reports import sources
from tests.service.uploads.requests import SETTINGS
from warpcall import AsyncClient, Client, CompileReport, Forbidden, InvalidInput
from warpcall._cli import main

pytestmark = pytest.mark.slow

Command = Callable[..., tuple[int, str, str]]
CASE: dict[str, Any] = {"shape": [64, 256], "dtype": "F32", "params": {"dims": [1, 0]}}
OPTIONS = ("--shape", "64x256", "--dtype", "fp32", "--dims", "1,0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(
        {**SETTINGS, "WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))}
    ) as s:
        yield s


@pytest.fixture
def warpcall(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Command:
    monkeypatch.setenv("WARPCALL_URL", server.url)
    monkeypatch.chdir(tmp_path)
    Path("tuned.py").write_text(sources.TUNED)
    Path("permute.py").write_text(sources.TUNED.replace("num_stages=2", "num_stages=3"))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["warpcall", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_table_of_a_file_fits_80_columns(warpcall: Command) -> None:
    code, out, _ = warpcall("explain", "tuned.py", "permute", *OPTIONS, "--gpu", "sm_80")

    assert code == 0
    head, *_, first, numbers, second, more = out.splitlines()
    assert head.startswith("tuned.py: permute x=F32[64,256] dims=1,0, sm_80, Triton ")
    assert first == (
        "_copy, grid 64x4x1, 3 launches, num_warps: 2, num_ctas: 1, num_stages: 2, maxnreg: None"
    )
    assert second.startswith("_copy, grid 64x4x1, 3 launches, num_warps: 4")
    for line, warps in ((numbers, "2"), (more, "4")):
        registers, *rest = line.split()
        assert int(registers) > 0
        assert rest[:5] == ["0", "0", "0", warps, "2"]
        assert len(line) <= 80


def test_the_op_of_a_file_is_that_of_its_name(warpcall: Command) -> None:
    named = warpcall("explain", "permute.py", *OPTIONS)
    unknown = warpcall("explain", "tuned.py", *OPTIONS)

    assert named[0] == 0
    assert unknown[0] == 2
    assert "name the op that tuned.py implements: warpcall explain tuned.py OP" in unknown[2]


def test_an_op_and_an_upload_are_explained(warpcall: Command, server: Server) -> None:
    with Client(server.url) as gpu:
        mine = gpu.implementations.add("permute", sources.TUNED, name="mine")

    own = warpcall("explain", "permute", *OPTIONS)
    upload = warpcall("explain", "local/mine", *OPTIONS)

    assert (own[0], upload[0]) == (0, 0)
    assert own[1].startswith("warpcall: permute x=F32[64,256]")
    assert upload[1].startswith(f"local/mine@{mine.version}: permute x=F32[64,256]")


def test_one_text_is_shown(warpcall: Command) -> None:
    _, ptx, _ = warpcall("explain", "permute", *OPTIONS, "--show", "ptx")
    _, sass, _ = warpcall("explain", "permute", *OPTIONS, "--show", "sass")

    assert ".target sm_90a" in ptx
    assert " EXIT ;" in sass


def test_two_versions_are_shown_with_their_differences(warpcall: Command) -> None:
    Path("wide.py").write_text(sources.TUNED.replace("num_stages=2", "num_stages=2, maxnreg=32"))
    Path("more.py").write_text(sources.TUNED.replace("mask=inside)", "mask=inside) + 1.0", 1))

    code, out, _ = warpcall("explain", "more.py", "permute", *OPTIONS, "--diff", "tuned.py")
    sass = warpcall(
        "explain", "more.py", "permute", *OPTIONS, "--diff", "tuned.py", "--show", "sass"
    )[1]
    same = warpcall("explain", "tuned.py", "permute", *OPTIONS, "--diff", "tuned.py")[1]
    other = warpcall("explain", "wide.py", "permute", *OPTIONS, "--diff", "tuned.py")[1]

    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("old: tuned.py: ")
    assert lines[1].startswith("new: more.py: ")
    assert any(line.startswith("  old") for line in lines)
    assert any(line.startswith("+") and "0f3F800000" in line for line in lines)
    assert any(line.startswith("+") and "FADD" in line for line in sass.splitlines())
    assert "/*0" not in sass, "addresses differ wherever an instruction was added before them"
    assert same.count("no difference") == 2
    assert other.count("absent") == 4  # no configuration is in both


def test_versions_whose_kernels_have_other_names_or_grids_are_compared(warpcall: Command) -> None:
    Path("fewer.py").write_text(sources.SOFTMAX.replace("(rows,)", "(rows // 2,)"))
    Path("named.py").write_text(
        sources.SOFTMAX.replace("_softmax(", "_rows(")
        .replace("_softmax[", "_rows[")
        .replace("def masked_rows(", "def masked_softmax(")
    )
    Path("old.py").write_text(sources.SOFTMAX)
    case = ("masked-softmax", "--shape", "64x256", "--dtype", "fp32", "--diff", "old.py")

    grid = warpcall("explain", "fewer.py", *case)[1].splitlines()
    name = warpcall("explain", "named.py", *case)[1].splitlines()

    assert "new: _softmax, grid 32x1x1; old: _softmax, grid 64x1x1" in grid
    assert "new: _rows, grid 64x1x1; old: _softmax, grid 64x1x1" in name
    assert "ptx of _softmax: no difference" in grid


def test_json_has_every_text_and_fits_the_published_schema(
    warpcall: Command, server: Server
) -> None:
    code, out, _ = warpcall("explain", "permute", *OPTIONS, "--json")

    found = json.loads(out)
    assert code == 0
    with httpx.Client(base_url=server.url) as http:
        published = http.get("/openapi.json").json()
    schema = {"components": published["components"], "$ref": "#/components/schemas/CompileReport"}
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid(found)
    assert not validator.is_valid({**found, "kernels": [{}]})
    assert [*found["kernels"][0]["texts"]] == ["ttir", "ttgir", "ptx", "sass"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("explain", "permute", *OPTIONS, "--gpu", "sm_1"), "--gpu must be one of sm_80, sm_86"),
        (("explain", "permute", *OPTIONS, "--show", "exe"), "--show must be one of ttir, ttgir"),
        (("explain", "permute", *OPTIONS, "--dims", "0,1"), "--dims must have one value"),
        (("explain", "permute", "--dims", "1,0"), "--shape must be shapes such as"),
        (("explain", "permute", "isin", *OPTIONS), "explain takes permute, then options, got 'isin'"),
        (("explain", "permute", *OPTIONS[:-1], "1,5"), "--dims: dims must name each"),
        (("explain", "broken.py", "permute", *OPTIONS), "broken.py: line 2: SyntaxError: "),
        (("explain", "tuned.py:none", "permute", *OPTIONS), "tuned.py: it has no function none"),
    ],
)  # fmt: skip
def test_wrong_use_is_explained(words: tuple[str, ...], error: str, warpcall: Command) -> None:
    Path("broken.py").write_text("def permute(x, dims):\n    return x.permute(dims\n")

    code, out, said = warpcall(*words)

    assert (code, out) == (2, "")
    assert error in said


def test_the_sdk_returns_dataclasses(server: Server) -> None:
    with Client(server.url) as gpu:
        found = gpu.explain("permute", CASE, code=sources.TUNED, gpu="sm_80", texts=["ptx"])

        with pytest.raises(InvalidInput, match="cannot be given together"):
            gpu.explain("permute", CASE, code=sources.TUNED, implementation="warpcall")

    kernel = found.kernels[0]
    assert kernel.occupancy == kernel.resident_warps / kernel.max_warps
    assert kernel.shared_bytes == 0
    assert repr(found) == "CompileReport of 2 rows: see to_rows() or to_pandas()"
    assert repr(kernel.texts["ptx"]).startswith("KernelText of ")
    assert "<th>registers</th>" in found._repr_html_()
    assert found.to_rows()[0]["kernel"] == kernel.label


def test_the_asynchronous_client_explains(server: Server) -> None:
    async def ask() -> CompileReport:
        async with AsyncClient(server.url) as gpu:
            return await gpu.explain("permute", CASE, texts=[])

    found = asyncio.run(ask())

    assert found.implementation == "warpcall"
    assert found.kernels[0].texts == {}


def test_the_same_report_is_made_once(server: Server) -> None:
    def checks(http: httpx.Client) -> str:
        lines = http.get("/metrics").text.splitlines()
        return next(one for one in lines if 'checks_total{outcome="accepted"}' in one)

    case = {**CASE, "shape": [32, 128]}
    with Client(server.url) as gpu, httpx.Client(base_url=server.url) as http:
        first = gpu.explain("permute", case, code=sources.TUNED, texts=["ptx"])
        before = checks(http)
        second = gpu.explain("permute", case, code=sources.TUNED, texts=["sass"])
        after = checks(http)
        other = gpu.explain("permute", case, code=f"{sources.TUNED}#", texts=[])

        assert before == after != checks(http)
    assert first.to_rows() == second.to_rows() == other.to_rows()
    assert [*second.kernels[0].texts] == ["sass"]


def test_a_server_without_uploads_explains_its_own_ops_only() -> None:
    with (
        running_server({"WARPCALL_ARENA_BYTES": "16MiB"}) as without,
        Client(without.url) as gpu,
    ):
        own = gpu.explain("permute", CASE, texts=[])

        with pytest.raises(Forbidden, match="this server runs no uploaded code"):
            gpu.explain("permute", CASE, code=sources.TUNED)
        with pytest.raises(Forbidden, match="this server runs no uploaded code"):
            gpu.explain("permute", CASE, implementation="local/mine")
    assert own.kernels
