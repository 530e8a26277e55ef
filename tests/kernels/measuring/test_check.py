"""What the check of results says."""

from __future__ import annotations

import pytest

from warpcall_kernels.measuring._check import shown


@pytest.mark.parametrize(
    ("got", "wanted", "texts"),
    [
        (-0.7916862964630127, 0.0844389796257019, ("-0.7917", "0.08444")),
        (0.7916862964630127, 0.7916862368583679, ("0.7916863", "0.79168624")),
        (1.0, 1.0000000000000002, ("1.0", "1.0000000000000002")),
        (float("nan"), 1.5, ("nan", "1.5")),
        (3, 4, ("3", "4")),
    ],
)
def test_a_wrong_value_has_as_few_digits_as_tell_it_apart(
    got: float, wanted: float, texts: tuple[str, str]
) -> None:
    assert shown(got, wanted) == texts
