"""The grid of isin: which process measures which cells, and how measurements of one cell become one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bench.kernels import grid, grid_page
from bench.kernels.grid import joined, mean_of, middle_mean, shares_by_pass, shares_of
from bench.kernels.grid_page import Cell


def cell(us: float, torch: float, scan: float, **other: Any) -> Cell:
    size = {"dtype": "int32", "values": "dense", "elements": 256, "test_elements": 64, **other}
    return {**size, "variant": "compare", "us": us, "others_us": {"torch": torch, "scan": scan}}


def test_each_candidate_has_the_mean_of_its_own_times() -> None:
    cells = [cell(5.5, 30.0, 4.5), cell(4.5, 20.0, 5.0), cell(4.4, 25.0, 4.9)]

    assert mean_of(cells) == cell(4.8, 25.0, 4.8)


def test_a_cell_that_was_measured_once_stays_as_it_is() -> None:
    assert mean_of([cell(5.5, 30.0, 4.5)]) == cell(5.5, 30.0, 4.5)


def test_measurements_are_joined_by_cell_in_the_order_of_the_page() -> None:
    large = {"elements": 1 << 20}
    sparse = {"dtype": "int64", "values": "sparse"}
    measured = [
        cell(9.0, 50.0, 8.0, **large),
        cell(7.0, 40.0, 6.0, **sparse),
        cell(5.5, 30.0, 4.5),
        cell(9.4, 50.0, 8.2, **large),
        cell(4.5, 20.0, 5.0),
    ]

    assert joined(measured) == [
        cell(5.0, 25.0, 4.75),
        cell(9.2, 50.0, 8.1, **large),
        cell(7.0, 40.0, 6.0, **sparse),
    ]


@pytest.mark.parametrize("processes", [1, 2, 3, 14])
def test_each_pass_measures_all_cells(processes: int) -> None:
    every = sorted(itertools.product(grid.TYPES, grid.TEST_ELEMENTS))

    passes = shares_by_pass(shares_of(processes))

    assert len(passes) == grid.PASSES
    for shares in passes:
        assert len(shares) == processes
        assert sorted(itertools.chain(*shares)) == every


@pytest.mark.parametrize("processes", [4, 5, 14])
def test_no_process_measures_a_cell_twice(processes: int) -> None:
    for shares in zip(*shares_by_pass(shares_of(processes)), strict=True):
        measured = [*itertools.chain(*shares)]
        assert len(measured) == len({*measured})


def test_cells_for_which_torch_compiles_are_spread_over_processes() -> None:
    compiled = [sum(n <= 7 for _dtype, n in share) for share in shares_of(4)]

    assert compiled == [3, 3, 3, 3]


@pytest.mark.parametrize("rounds", [0, 8])
def test_a_candidate_whose_first_sample_is_long_is_timed(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = {"ours": [200.0, 5.0, *[4.0] * 8], "torch": [30.0, 40.0], "large": [6.0] * 10}
    sampled = {name: iter(times) for name, times in samples.items()}

    def sample(
        _clock: object,
        calls: dict[str, object],
        _x: None,
        _test: None,
        taken: dict[str, list[float]],
    ) -> None:
        for name in calls:
            taken[name].append(next(sampled[name]))

    monkeypatch.setattr(grid._Clock, "_round", sample)
    monkeypatch.setattr(grid._Clock, "_collect", lambda _clock, _taken: None)
    clock = grid._Clock.__new__(grid._Clock)

    times = clock.times_us(dict.fromkeys(samples), None, None, rounds)  # type: ignore[arg-type]

    assert times == {"ours": 4.0 if rounds else 5.0, "torch": 30.0, "large": 6.0}


def test_the_page_lists_cells_that_another_candidate_does_faster() -> None:
    machine = dict.fromkeys(("gpu", "torch", "triton", "cuda", "date"), "-")
    level = [{**cell(5.0, 20.0, 4.75), "values": values} for values in grid.VALUES]

    pages = [
        grid_page.markdown({"machine": machine, "cells": cells})
        for cells in (level, [{**level[0], "us": 5.1}, level[1]])
    ]

    below = "| int32 sparse 2^8 in 2^6 | compare 5.1 | scan 4.8 | 0.93 | 5.0, 4.8 |"
    assert "No cell is below 0.95." in pages[0]
    assert below not in pages[0]
    assert below in pages[1]
    assert "No cell is below 0.95." not in pages[1]


def test_the_mean_leaves_out_the_quarters_at_both_ends() -> None:
    assert middle_mean([100.0, 4.0, 1.0, 2.0, 3.0, 3.0, 4.0, 0.0]) == 3.0
    assert middle_mean([7.0]) == 7.0
