"""`warpcall check` on a real server: what is right in which of the odd cases of an op."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import command_for
from tests.service.databases import Database
from tests.service.uploads.requests import Lab, running_lab

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples/my_permute.py"
SOURCE = """
import torch


def permute(x, dims):
    return x.permute(dims).clone(memory_format=torch.contiguous_format)


def ignores_strides(x, dims):
    strides = torch.empty(x.shape, device="meta").stride()
    return permute(x.as_strided(x.shape, strides), dims)


def loses_nan(x, dims):
    out = permute(x, dims)
    return out.nan_to_num() if out.is_floating_point() and out.itemsize > 1 else out


def needs_an_element(x, dims):
    x.reshape(-1)[0]
    return permute(x, dims)
"""

Check = Callable[[str], tuple[int, dict[str, Any]]]
CHECK = ("check", "permute", "--mine")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("checks"))})
    with running_lab(database, "ann") as running:
        yield running


@pytest.fixture
def check(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Check:
    """Check a function of a file as ann: the exit code and what is printed as JSON."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARPCALL_API_KEY", lab.keys["ann"])
    Path("mine.py").write_text(SOURCE)
    shutil.copy(EXAMPLE, "my_permute.py")
    command = command_for(lab.server, monkeypatch, capsys)

    def run(file: str) -> tuple[int, dict[str, Any]]:
        code, out, err = command(*CHECK, file, "--json")
        assert err == ""
        return code, json.loads(out)

    return run


def cases(found: dict[str, Any], result: str) -> list[str]:
    return [one["case"] for one in found["checks"] if one["result"] == result]


def test_a_right_upload_is_right_in_every_case(check: Check) -> None:
    code, found = check("my_permute.py")

    assert (code, found["passed"], found["state"]) == (0, True, "succeeded")
    assert len(found["checks"]) > 40
    assert cases(found, "right") == [one["case"] for one in found["checks"]]


def test_an_upload_that_ignores_strides_is_wrong_where_there_are_some(check: Check) -> None:
    code, found = check("mine.py:ignores_strides")

    wrong = cases(found, "wrong")
    assert (code, found["passed"], found["state"]) == (1, False, "partial")
    layouts = (":transposed", ":strided", ":expanded")
    assert wrong
    assert all(any(layout in case for layout in layouts) for case in wrong)
    for layout in layouts:
        assert any(layout in case for case in wrong)


def test_an_upload_that_loses_nan_is_wrong_where_there_is_some(check: Check) -> None:
    code, found = check("mine.py:loses_nan")

    assert code == 1
    assert cases(found, "wrong")
    assert all(":special" in case for case in cases(found, "wrong"))


def test_an_upload_that_needs_an_element_fails_where_there_is_none(check: Check) -> None:
    code, found = check("mine.py:needs_an_element")

    failed = cases(found, "error")
    assert code == 1
    assert [case for case in failed if "[0," in case] == failed != []
    assert "IndexError" in next(c["reason"] for c in found["checks"] if c["result"] == "error")


def test_the_table_names_the_upload_and_counts(
    lab: Lab, check: Check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = command_for(lab.server, monkeypatch, capsys)

    code, out, err = command(*CHECK, "mine.py:loses_nan")

    uploaded, name, *lines = out.splitlines()
    assert (code, err, name) == (1, "", "ann/loses_nan")
    assert uploaded.startswith("mine.py is ann/loses_nan@")
    assert "  wrong  permute x=F64[30,7]:special dims=1,0" in lines
    assert any(line.startswith("ann/loses_nan: 67 cases, 62 right, 5 wrong") for line in lines)
