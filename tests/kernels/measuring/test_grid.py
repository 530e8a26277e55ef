"""The grid of isin: how measurements of one cell become one."""

from __future__ import annotations

from bench.kernels.grid import median_of, medians_of, middle_mean
from bench.kernels.grid_page import Cell


def cell(us: float, torch: float, scan: float) -> Cell:
    size = {"dtype": "int32", "values": "dense", "elements": 256, "test_elements": 64}
    return {**size, "variant": "compare", "us": us, "others_us": {"torch": torch, "scan": scan}}


def test_each_candidate_has_the_median_of_its_own_times() -> None:
    cells = [cell(5.5, 30.0, 4.5), cell(4.5, 20.0, 5.0), cell(4.4, 25.0, 4.8)]

    assert median_of(cells) == cell(4.5, 25.0, 4.8)


def test_a_cell_that_was_measured_once_stays_as_it_is() -> None:
    assert median_of([cell(5.5, 30.0, 4.5)]) == cell(5.5, 30.0, 4.5)


def test_each_cell_has_the_medians_over_processes() -> None:
    first = [cell(5.5, 30.0, 4.5), cell(9.0, 50.0, 8.0)]
    second = [cell(4.5, 20.0, 5.0), cell(9.4, 50.0, 8.2)]

    assert medians_of([first, second]) == [cell(5.0, 25.0, 4.75), cell(9.2, 50.0, 8.1)]


def test_the_mean_leaves_out_the_quarters_at_both_ends() -> None:
    assert middle_mean([100.0, 4.0, 1.0, 2.0, 3.0, 3.0, 4.0, 0.0]) == 3.0
    assert middle_mean([7.0]) == 7.0
