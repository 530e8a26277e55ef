"""Users' own ops on a real server, as from other machines: only its address and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.command import command_for
from tests.e2e.lab import Lab
from warpcall import AsyncClient, Forbidden, InvalidInput, NotFound

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
PROBLEM = (EXAMPLES / "row_norm.py").read_text()
KERNELS = """
def row_norm(x, eps):
    return x / (x * x + eps / x.shape[-1]).sum(-1, keepdim=True).sqrt()


def mistaken(x, eps):
    return x / x.shape[-1]


def failing(x, eps):
    return x.norm(dims=-1)
"""
SIZES = ("--size", "rows=3,columns=4")

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def warpcall(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command as ann, in a folder that has her files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARPCALL_API_KEY", lab.keys["ann"])
    Path("row_norm.py").write_text(PROBLEM)
    Path("my_row_norm.py").write_text((EXAMPLES / "my_row_norm.py").read_text())
    Path("kernels.py").write_text(KERNELS)
    return command_for(lab.server, monkeypatch, capsys)


def test_a_problem_of_a_users_own_ends_in_a_table(warpcall: Command, lab: Lab) -> None:
    added = warpcall("problems", "add", "row_norm.py")
    shown = warpcall("kernels", "ann/row-norm")
    bench = ("bench", "ann/row-norm", "--size", "rows=3,columns=4,37", "--dtype", "bf16",
             "--mine", "my_row_norm.py", "--precision", "quick")  # fmt: skip
    code, out, err = warpcall(*bench)
    again = warpcall(*bench)

    assert added[1].startswith("row_norm.py is ann/row-norm@")
    assert shown[1].startswith("ann/row-norm: Row norm: each row divided by its Euclidean length.")
    assert "  --dtype float32,bfloat16  (default float32)\n" in shown[1]
    assert (code, err) == (0, "")
    uploaded, about, page, explained, _head, *rows = out.splitlines()
    assert about == "ann/my_row_norm: right in 2 of 2 cases, not timed: no GPU"
    assert rows[-2:] == [about, page]
    assert uploaded.startswith("my_row_norm.py is ann/my_row_norm@")
    assert "ratio and verdict: to torch" in explained
    assert [row for row in rows if row.startswith("ann/row-norm ")] == [
        f"ann/row-norm x=BF16[3,{columns}] eps=1e-06" for columns in (4, 37)
    ]
    names = ("torch", "ann/my_row_norm")
    assert [first for row in rows if (first := row.partition("  ")[2].split(" ")[0]) in names] == [
        *names, *names,
    ]  # fmt: skip
    assert "(--fresh measures anew)" in again[1]


def test_an_edited_problem_is_measured_anew_and_history_marks_it(
    warpcall: Command, lab: Lab
) -> None:
    warpcall("problems", "add", "row_norm.py", "--name", "edited")
    bench = ("bench", "ann/edited", *SIZES, "--precision", "quick")
    warpcall(*bench)
    Path("row_norm.py").write_text(PROBLEM.replace("(x.square()", "(x.abs().square()"))
    warpcall("problems", "add", "row_norm.py", "--name", "edited")
    _, second, _ = warpcall(*bench)
    history = warpcall("history", "ann/edited x=F32[3,4] eps=1e-06")
    with lab.client("ann") as gpu:
        details = gpu.problems.get("ann/edited")
        later, earlier = gpu.jobs.history("ann/edited x=F32[3,4] eps=1e-06").points
        old = gpu.jobs.submit(f"ann/edited@{details.versions[1].version}",
                              sweep={"sizes": {"rows": [3], "columns": [4]}}, precision="quick",
                              implementations=["torch"])  # fmt: skip

    assert "(--fresh measures anew)" not in second
    assert len(details.versions) == 2
    assert later.measurement.problem_sha256 == details.sha256
    assert earlier.measurement.problem_sha256 == details.versions[1].sha256
    assert "problem" in later.changed
    assert earlier.changed == []
    _head, latest, first = history[1].splitlines()
    assert latest.endswith("problem, source")
    assert "problem" not in first
    assert (old.id, old.op) == (earlier.job, "ann/edited")


def test_a_kernel_that_fails_is_explained(warpcall: Command) -> None:
    warpcall("problems", "add", "row_norm.py")

    code, out, err = warpcall("bench", "ann/row-norm", *SIZES, "--precision", "quick",
                              "--mine", "kernels.py:mistaken", "--mine", "kernels.py:failing")  # fmt: skip

    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (1, "")
    assert ["ann/mistaken", "wrong_result"] in lines
    assert ["ann/failing", "error"] in lines
    assert 'File "failing.py", line 11, in failing' in out


def test_a_file_that_is_no_problem_is_refused_with_its_line(warpcall: Command) -> None:
    for old, new, message in [
        ("PROBLEM = ", "OTHER = ", "a problem is declared as PROBLEM = Problem(...)"),
        ("x.square()", "x.squared()", "line 11: AttributeError"),
        ('{"x": Sample', '{"y": Sample', "line 9: reference"),
    ]:
        assert old in PROBLEM
        Path("broken.py").write_text(PROBLEM.replace(old, new))

        code, out, err = warpcall("problems", "add", "broken.py", "--name", "broken")

        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("warpcall: broken.py: ")
        assert message in err


def test_what_a_problem_does_not_have_is_refused_by_its_option(warpcall: Command) -> None:
    warpcall("problems", "add", "row_norm.py")

    for words, message in [
        (("--size", "row=3"), "--size: ann/row-norm has no size 'row', it has rows, columns"),
        (
            ("--dtype", "fp16"),
            "--size, --dtype: dtype must be one of float32, bfloat16, got float16",
        ),
        (("--size", "rows=1099511627776"), "--size, --dtype: ann/row-norm x=F32[1099511627776,"),
        (("--vs", "warpcall"), "--vs: warpcall has no kernels for ann/row-norm"),
        (("--vs", "ann/absent"), "--vs: there is no 'ann/absent'"),
    ]:
        code, out, err = warpcall("bench", "ann/row-norm", "--dry-run", *words)

        assert (code, out) == (2, ""), err
        assert err.startswith(f"warpcall: {message}")

    code, _, err = warpcall("bench", "ann/absent")
    assert (code, err.count("\n")) == (1, 1)
    assert "ann/absent" in err


def test_problems_are_found_by_those_who_may_read_them(lab: Lab) -> None:
    with lab.client("ann") as ann, lab.client("bob") as bob, lab.client("eve") as eve:
        shared = ann.problems.add(PROBLEM, name="shared")
        secret = ann.problems.add(PROBLEM, name="secret", private=True)
        kernel = eve.implementations.add(shared.name, KERNELS, function="row_norm", name="theirs")
        seen = {one.name for one in bob.problems.list(user="ann").problems}
        at = bob.problems.get(shared.name, shared.version)
        cost = bob.jobs.preview(shared.name, implementations=["torch", kernel.name], sweep={})

        assert (kernel.op, cost.cases) == (shared.name, 1)
        assert shared.name in seen
        assert secret.name not in seen
        assert (at.source, at.inputs, at.sizes) == (PROBLEM, ["x"], ["rows", "columns"])
        for name in (secret.name, "ann/absent"):
            with pytest.raises(NotFound):
                bob.problems.get(name)
            with pytest.raises(InvalidInput, match=f"{name}.*not yours to read") as refused:
                bob.jobs.submit(name, sweep={})
            assert refused.value.field == "op"
            with pytest.raises(InvalidInput, match=name) as refused:
                eve.implementations.add(name, KERNELS, function="row_norm")
            assert refused.value.field == "op"
        with pytest.raises(Forbidden):
            bob.problems.add(PROBLEM)
        with pytest.raises(Forbidden):
            eve.problems.remove(shared.name)
        ann.problems.remove(shared.name)
        with pytest.raises(NotFound):
            bob.problems.get(shared.name)
        assert eve.implementations.get(kernel.name).op == shared.name


def test_problems_are_used_from_asyncio(lab: Lab) -> None:
    async def ask() -> tuple[bool, str, int]:
        async with AsyncClient(lab.server.url, api_key=lab.keys["ann"]) as gpu:
            added = await gpu.problems.add(EXAMPLES / "row_norm.py")
            listed = [one.name for one in (await gpu.problems.list(user="ann")).problems]
            details = await gpu.problems.get(added.name)
            cost = await gpu.jobs.preview(added.name, cases=[{"dtype": "BF16"}])
            await gpu.problems.remove(added.name, added.version)
            return added.name in listed, details.source, cost.cases

    assert asyncio.run(ask()) == (True, PROBLEM, 1)
