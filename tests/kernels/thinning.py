"""Which cases of a test with several parameters run in Triton's interpreter: `pytest.mark.thinned`.

A test with parameters of 4, 7 and 5 values has 140 cases. On a GPU they take a second. In the
interpreter each takes a tenth of one, and a fault hardly ever needs three values to show. There, a
test that is marked runs as many cases as have each pair of values of two parameters: 35 of the 140.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence

import pytest


def thinned_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The cases of marked tests that need not run, because others have the same combinations."""
    groups: dict[tuple[str, int], list[pytest.Function]] = {}
    for item in items:
        mark = item.get_closest_marker("thinned")
        if mark is not None and isinstance(item, pytest.Function):
            name = item.nodeid.partition("[")[0]
            groups.setdefault((name, mark.kwargs.get("together", 2)), []).append(item)
    left_out: list[pytest.Item] = []
    for (_, together), cases in groups.items():
        kept = covering([_values(case) for case in cases], together)
        left_out += [case for place, case in enumerate(cases) if place not in kept]
    return left_out


def covering(cases: Sequence[Sequence[Hashable]], together: int) -> set[int]:
    """Places of cases which have each combination of `together` values that any case has.

    Args:
        cases: the values of each case, in the order of the parameters.
    """
    combinations = [
        {*itertools.combinations(enumerate(case), min(together, len(case)))} for case in cases
    ]
    missing = set().union(*combinations)
    kept: set[int] = set()
    used: Counter[tuple[int, Hashable]] = (
        Counter()
    )  # so that of equal choices rare values are taken

    def merit(place: int) -> tuple[int, int]:
        return len(combinations[place] & missing), -sum(used[v] for v in enumerate(cases[place]))

    while missing:
        best = max(range(len(cases)), key=merit)
        missing -= combinations[best]
        used.update(enumerate(cases[best]))
        kept.add(best)
    return kept


def _values(case: pytest.Function) -> list[Hashable]:
    """What identifies the values of a case, for each `parametrize` of its test and each fixture."""
    left = {name: id(value) for name, value in case.callspec.params.items()}
    found: list[Hashable] = []
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        found.append(tuple(left.pop(name.strip()) for name in names))
    return [*found, *left.values()]
