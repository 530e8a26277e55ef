"""How `warpcall bench` reads sizes."""

from __future__ import annotations

import pytest

from warpcall._cli.files import UsageError
from warpcall._cli.sweep_args import sizes_of


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ([], {}),
        (["taps=3,7"], {"taps": [3, 7]}),
        (["mask=key", "lengths=rows"], {"mask": ["key"], "lengths": ["rows"]}),
        (["rows=4096,columns=1000,1024"], {"rows": [4096], "columns": [1000, 1024]}),
        (["rows=1,2,columns=3", "taps=4"], {"rows": [1, 2], "columns": [3], "taps": [4]}),
    ],
)
def test_sizes_are_read(given: list[str], sizes: dict[str, list[int | str]]) -> None:
    assert sizes_of(given) == sizes


@pytest.mark.parametrize(
    "given",
    [["taps"], ["taps="], ["=3"], ["3,taps=4"], ["taps=3,"], ["taps=,3"], ["taps=3,,7"], [""],
     ["a=1,a=2"], ["a=1", "a=2"], ["a=1,=2"]],
)  # fmt: skip
def test_sizes_that_are_none_are_refused(given: list[str]) -> None:
    with pytest.raises(UsageError, match=f"--size must be such as .*, got {given[-1]!r}"):
        sizes_of(given)
