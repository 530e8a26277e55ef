"""What the clients say about attributes that they do not have."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

from warpcall import AsyncClient, Client


def parts(kind: type[Client | AsyncClient]) -> list[Any]:
    gpu = kind("http://127.0.0.1:1")
    return [gpu, gpu.stored, gpu.program()]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("part", [0, 1, 2], ids=["client", "stored", "program"])
def test_a_name_that_looks_like_an_op_is_corrected(
    kind: type[Client | AsyncClient], part: int
) -> None:
    gpu = parts(kind)[part]

    for given, meant in [
        *[("softmax", "masked_softmax"), ("transpose", "transpose_add"), ("conv1d", "conv")],
        *[("Permute", "permute"), ("masked-softmax", "masked_softmax"), ("is_in", "isin")],
    ]:
        with pytest.raises(AttributeError) as caught:
            getattr(gpu, given)
        name = type(gpu).__name__
        text = f"{name!r} object has no attribute {given!r}; did you mean {meant!r}?"
        assert str(caught.value) == text


def test_other_names_are_corrected_too_or_only_refused() -> None:
    with Client("http://127.0.0.1:1") as gpu:
        unknown: Any = gpu
        with pytest.raises(AttributeError, match="did you mean 'jobs'"):
            unknown.job  # noqa: B018
        with pytest.raises(AttributeError, match=r"has no attribute 'zzz'$"):
            unknown.zzz  # noqa: B018
        with pytest.raises(AttributeError, match=r"has no attribute '_softmax'$"):
            unknown._softmax  # noqa: B018


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_tools_that_look_for_attributes_work(kind: type[Client | AsyncClient]) -> None:
    display: Any = DisplayFormatter()
    for one in parts(kind):
        assert not hasattr(one, "softmax")
        assert not hasattr(one, "_repr_html_")
        assert getattr(one, "softmax", 7) == 7
        assert type(copy.copy(one)) is type(one)
        data, _ = display.format(one)
        assert list(data) == ["text/plain"]
        inspect.getmembers(one)
    gpu = parts(kind)[0]
    assert pickle.loads(pickle.dumps(gpu)).url == gpu.url
    with pytest.raises(AttributeError, match="'_core'"):
        kind.__new__(kind)._core  # noqa: B018  # as when an unpickled object has no state yet


def test_a_traceback_has_one_suggestion() -> None:
    program = "import warpcall; warpcall.Client('http://127.0.0.1:1').permut"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    last = done.stderr.splitlines()[-1]
    assert last == (
        "AttributeError: 'Client' object has no attribute 'permut'; did you mean 'permute'?"
    )
