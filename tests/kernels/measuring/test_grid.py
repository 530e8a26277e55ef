"""The grid of isin: how measurements of one cell become one."""

from __future__ import annotations

from bench.kernels.grid import median_of
from bench.kernels.grid_page import Cell


def cell(us: float, torch: float, scan: float) -> Cell:
    size = {"dtype": "int32", "values": "dense", "elements": 256, "test_elements": 64}
    return {**size, "variant": "compare", "us": us, "others_us": {"torch": torch, "scan": scan}}


def test_each_candidate_has_the_median_of_its_own_times() -> None:
    cells = [cell(5.5, 30.0, 4.5), cell(4.5, 20.0, 5.0), cell(4.4, 25.0, 4.8)]

    assert median_of(cells) == cell(4.5, 25.0, 4.8)


def test_a_cell_that_was_measured_once_stays_as_it_is() -> None:
    assert median_of([cell(5.5, 30.0, 4.5)]) == cell(5.5, 30.0, 4.5)
