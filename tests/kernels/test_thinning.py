"""Thinned tests still have each value, and each pair of values, among their cases."""

from __future__ import annotations

import itertools

import pytest

from tests.kernels.thinning import covering, thinned_out


@pytest.mark.parametrize("together", [1, 2, 3])
def test_each_combination_of_values_is_kept(together: int) -> None:
    cases = [*itertools.product(range(4), range(7), range(5))]

    kept = [cases[place] for place in covering(cases, together)]

    for axes in itertools.combinations(range(3), together):
        assert {tuple(case[a] for a in axes) for case in kept} == {
            tuple(case[a] for a in axes) for case in cases
        }
    assert len(kept) <= {1: 7, 2: 45, 3: 140}[together]


@pytest.mark.thinned
@pytest.mark.parametrize("one", range(3))
@pytest.mark.parametrize(("two", "three"), [(0, 0), (1, 1), (2, 2)])
@pytest.mark.parametrize("four", range(3))
def test_a_marked_test_has_fewer_cases_in_the_interpreter(
    one: int, two: int, three: int, four: int, request: pytest.FixtureRequest, device: str
) -> None:
    name = request.node.nodeid.partition("[")[0]
    cases = [item for item in request.session.items if item.nodeid.startswith(f"{name}[")]
    params = [getattr(case, "callspec").params for case in cases]  # noqa: B009  # mypy

    if device != "cpu":
        assert len(params) == 27
    elif len(params) > 1:  # all of them were selected
        assert 9 <= len(params) <= 12
        for a, b in itertools.combinations(("one", "two", "four"), 2):
            assert {(p[a], p[b]) for p in params} == {*itertools.product(range(3), repeat=2)}
    assert two == three
    assert thinned_out(cases) == []
