"""Users' own kernels on a real server, as from other machines: only its address and keys."""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.command import command_for
from tests.e2e.lab import UPLOADS, Lab
from tests.servers import running_server
from warpcall import AsyncClient, Forbidden, InvalidInput, NotFound

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples/my_permute.py"
SOURCE = '''
def permute(x, dims):
    """Permute with torch."""
    return x.permute(dims).contiguous()


def raises(x, dims):
    return x.permute(dims).contigous()


def wrong(x, dims):
    return x.permute(dims).contiguous() + 1
'''
SWEEP = {"shapes": [[16, 16]], "dtypes": ["F32"], "params": {"dims": [[1, 0]]}}
BENCH = ("bench", "permute", "--shape", "16x16", "--dtype", "fp32", "--dims", "1,0",
         "--precision", "quick")  # fmt: skip


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def warpcall(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command as ann, in a folder that has her files."""
    return _as_ann(lab, tmp_path, monkeypatch, capsys)


@pytest.fixture
def sandboxed(
    sandboxed_lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """The same for a server whose uploads run in the sandbox."""
    return _as_ann(sandboxed_lab, tmp_path, monkeypatch, capsys)


def _as_ann(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WARPCALL_API_KEY", lab.keys["ann"])
    Path("mine.py").write_text(SOURCE)
    shutil.copy(EXAMPLE, "my_permute.py")
    return command_for(lab.server, monkeypatch, capsys)


def test_a_kernel_of_a_users_own_ends_in_a_table(sandboxed: Command, sandboxed_lab: Lab) -> None:
    code, out, err = sandboxed(*BENCH, "--mine", "my_permute.py", "--vs", "warpcall,torch,copy")
    again = sandboxed(*BENCH, "--mine", "my_permute.py", "--vs", "warpcall,torch,copy")

    assert (code, err) == (0, "")
    uploaded, about, page, explained, _head, case, *rows = out.splitlines()
    assert about == "ann/my_permute: right, not timed: no GPU"
    assert page.startswith(f"{sandboxed_lab.server.url}/jobs/")
    assert rows[-2:] == [about, page]
    assert uploaded.startswith("my_permute.py is ann/my_permute@")
    assert "ratio and verdict: to warpcall" in explained
    assert case == "permute x=F32[16,16] dims=1,0"
    names = ["warpcall", "ann/my_permute", "torch", "copy"]
    assert [first for row in rows[:-2] if (first := row.split()[0]) in names] == names
    assert sum(row.startswith("no GPU: warpcall runs plain torch here") for row in rows) == 1
    assert again[1].startswith(uploaded.replace("uploaded now", "uploaded before"))
    assert "(--fresh measures anew)" in again[1]


def test_an_edited_file_is_measured_anew_and_history_marks_it(warpcall: Command, lab: Lab) -> None:
    warpcall(*BENCH, "--mine", "mine.py", "--vs", "torch")
    Path("mine.py").write_text(f"{SOURCE}# edited\n")
    _, second, _ = warpcall(*BENCH, "--mine", "mine.py", "--vs", "torch")
    with lab.client("ann") as gpu:
        details = gpu.implementations.get("ann/mine")
        series = gpu.jobs.history(
            "permute x=F32[16,16] dims=1,0", implementation="ann/mine", limit=2
        )

    assert "(--fresh measures anew)" not in second
    assert len(details.versions) == 2
    later, earlier = series.points
    assert later.measurement.source_sha256 == details.sha256
    assert earlier.measurement.source_sha256 == details.versions[1].sha256
    assert "source" in later.changed


def test_an_implementation_that_fails_is_explained(sandboxed: Command) -> None:
    code, out, err = sandboxed(
        *BENCH, "--mine", "mine.py:raises", "--mine", "mine.py:wrong", "--vs", "torch"
    )

    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert ["ann/raises", "error"] in [line.split() for line in lines]
    assert ["ann/wrong", "wrong_result"] in [line.split() for line in lines]
    assert "    return x.permute(dims).contigous()" in out
    assert "line 8, in raises" in out
    assert "has no attribute 'contigous'" in out


def test_a_file_that_cannot_work_is_refused_with_its_line(warpcall: Command) -> None:
    for name, source, message in [
        (
            "syntax.py",
            "x = 1\ndef permute(x, dims:\n    return x\n",
            "syntax.py: line 2: SyntaxErr",
        ),
        ("absent.py", "import torch\nimport nobodys\n", "absent.py: line 2: ModuleNotFoundError"),
        ("other.py", "def transpose(x):\n    return x\n", "its functions are: transpose"),
        ("narrow.py", "\ndef permute(x):\n    return x\n", "narrow.py: line 2: permute must take"),
    ]:
        Path(name).write_text(source)

        code, out, err = warpcall(*BENCH, "--mine", name)

        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_uploads_are_found_by_those_who_may_read_them(lab: Lab) -> None:
    with lab.client("ann") as ann, lab.client("bob") as bob, lab.client("eve") as eve:
        shared = ann.implementations.add("permute", SOURCE, name="shared")
        secret = ann.implementations.add("permute", SOURCE, name="secret", private=True)
        seen = {one.name for one in bob.implementations.list(op="permute").implementations}
        at = bob.implementations.get(f"ann/shared@{shared.version}")

        assert {"ann/shared", "warpcall"} <= seen
        assert "ann/secret" not in seen
        assert (at.source, at.doc) == (SOURCE, "Permute with torch.")
        for gpu, name in [(bob, secret.name), (bob, "ann/absent"), (eve, secret.name)]:
            with pytest.raises(NotFound):
                gpu.implementations.get(name)
        with pytest.raises(InvalidInput, match="ann/secret") as refused:
            bob.jobs.submit("permute", implementations=["torch", secret.name], sweep=SWEEP)
        assert refused.value.field == "implementations"
        with pytest.raises(Forbidden):
            bob.implementations.add("permute", SOURCE)
        with pytest.raises(Forbidden):
            eve.implementations.remove(shared.name)
        ann.implementations.remove(shared.name)
        with pytest.raises(NotFound):
            bob.implementations.get(shared.name)


def test_the_environment_says_what_uploads_may_use(sandboxed_lab: Lab, sandboxed: Command) -> None:
    async def ask() -> str:
        async with AsyncClient(sandboxed_lab.server.url, api_key=sandboxed_lab.keys["ann"]) as gpu:
            return (await gpu.implementations.environment()).torch

    with sandboxed_lab.client("ann") as gpu:
        environment = gpu.implementations.environment()
    shown = sandboxed("implementations", "environment")

    assert (environment.uploads, environment.trouble) == (UPLOADS, "")
    assert "torch" in dict(environment.packages)
    assert shown[1].startswith(f"uploads: {UPLOADS}\n")
    assert asyncio.run(ask()) == environment.torch


def test_a_function_is_uploaded_with_its_file(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions_of_ann.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("functions_of_ann")

    with lab.client("ann") as gpu:
        added = gpu.implementations.add("permute", module.permute, name="by-function")
        details = gpu.implementations.get(added.name)

    assert (details.source, details.function) == (SOURCE, "permute")


def test_a_server_takes_no_uploads_unless_its_operator_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    with running_server() as server:
        warpcall = command_for(server, monkeypatch, capsys)
        code, out, err = warpcall(*BENCH, "--mine", tmp_path / "mine.py")
        listed = json.loads(warpcall("implementations", "list", "--json")[1])
        shown = warpcall("implementations", "environment")

    assert (code, out) == (1, "")
    assert "WARPCALL_UPLOADS" in err
    assert "warpcall" in {one["name"] for one in listed["implementations"]}
    assert shown[1].startswith("uploads: off, the operator must set WARPCALL_UPLOADS\n")
