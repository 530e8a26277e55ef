"""Names of uploads as paths, and as the names of ops."""

from __future__ import annotations

import pytest

from warpcall import InvalidInput
from warpcall._jobs import names

ROOT = "/v1/implementations"


def path_of(name: str, version: str | None = None) -> str:
    return names.path_of(ROOT, name, version, "ann/my_permute")


def test_names_are_paths_of_their_own() -> None:
    assert path_of("ann/x.y") == f"{ROOT}/ann/x.y"
    assert path_of("ann@lab.org/x@3f2a91c0") == f"{ROOT}/ann%40lab.org/x?version=3f2a91c0"
    assert path_of("ann/x", "3f2a91c0") == f"{ROOT}/ann/x?version=3f2a91c0"


@pytest.mark.parametrize(
    "name", ["", "x", "/x", "ann/", "../x", "ann/..", "ann/x/y", "ann/x?y", "Ann/x", "ann/é",
             "ann/" + "x" * 49],
)  # fmt: skip
def test_a_name_that_none_can_have_is_refused_here(name: str) -> None:
    with pytest.raises(InvalidInput, match="name must be like ann/my_permute") as refused:
        path_of(name)

    assert refused.value.field == "name"


@pytest.mark.parametrize(
    ("name", "version"),
    [("a/x@3f2a91c", None), ("a/x@", None), ("a/x", "3F2A91C0"), ("a/x@3f2a91c0", "3f2a91c0"),
     ("a/x", "3f2a91c0&x=1")],
)  # fmt: skip
def test_a_version_that_none_can_be_is_refused_here(name: str, version: str | None) -> None:
    with pytest.raises(InvalidInput, match="version must be") as refused:
        path_of(name, version)

    assert refused.value.field == "version"


def test_an_op_with_a_user_is_a_problem() -> None:
    for op in ("ann/row-norm", "ann@lab.org/row-norm@3f2a91c0", "a/b"):
        assert names.is_problem(op)
    for op in ("masked-softmax", "", "ann/", "/row-norm", "../../readyz", "a/b/c", "ann/x@3f2a"):
        assert not names.is_problem(op)


def test_a_version_is_cut_from_the_name_of_an_op() -> None:
    for op, bare in [
        ("permute", "permute"),
        ("ann/row-norm", "ann/row-norm"),
        ("ann/row-norm@3f2a91c0", "ann/row-norm"),
        ("ann@lab.org/row-norm@3f2a91c0", "ann@lab.org/row-norm"),
    ]:
        assert names.without_version(op) == bare
