"""`warpcall tensors`, and `warpcall run` with tensors that are on the server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.command import Warpcall
from tests.e2e.test_stored_tensors import own_part
from tests.servers import Server
from warpcall import Client

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def _nothing_is_stored(server: Server) -> None:
    """Other tests may have left tensors on the server, which lists and messages would name."""
    with Client(server.url) as gpu:
        for tensor in gpu.tensors():
            tensor.delete()


def test_a_file_goes_there_is_used_and_comes_back(warpcall: Warpcall, tmp_path: Path) -> None:
    file, back = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(file, X)

    put = warpcall("tensors", "put", file, "--id", "photo", "--ttl-s", "60")
    stored = warpcall("run", "permute", "x=@photo", "--dims", "1,0", "--store", "--json")
    id_ = json.loads(stored[1])["out"]["id"]
    listed = warpcall("tensors", "list")
    got = warpcall("tensors", "get", id_[:6], "-o", back)
    plain = warpcall("run", "permute", f"x=@{id_[:6]}", "--dims", "0,1")
    deleted = warpcall("tensors", "delete", "pho", id_)
    empty = warpcall("tensors", "list", "--json")

    assert [result[0] for result in (put, stored, listed, got, plain, deleted, empty)] == [0] * 7
    stored_as, rest = put[1].splitlines()[1].split(maxsplit=1)
    assert own_part(stored_as) == "photo"
    assert rest.startswith("float32  [2, 3]  24 bytes  cpu     60 s")
    assert {line.split()[0] for line in listed[1].splitlines()} == {"id", stored_as, id_}
    np.testing.assert_array_equal(np.load(back), X.T)
    assert "[3, 2]" in plain[1]
    assert json.loads(empty[1]) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("run", "permute", "x=@none", "--dims", "0"), 1, "there is no tensor 'none', there are none"),
        (("run", "permute", "@none", "--dims", "0"), 2, "must say for which input it is, such as x=@none"),
        (("run", "permute", "y=@none", "--dims", "0"), 2, "must name an input, once: x"),
        (("run", "permute", "x=@a", "--store", "-o", "y.npy"), 2, "--store leaves outputs on the server"),
        (("tensors", "get", "none", "-o", "y.npy"), 1, "there is no tensor 'none'"),
        (("tensors", "delete", "none"), 1, "there is no tensor 'none'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_line(
    warpcall: Warpcall, arguments: tuple[str, ...], code: int, message: str
) -> None:
    ended, _, err = warpcall(*arguments)

    assert (ended, len(err.splitlines())) == (code, 1)
    assert message in err
