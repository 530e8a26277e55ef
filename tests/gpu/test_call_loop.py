"""Several calls under way on one GPU."""

from __future__ import annotations

from tests.service.worker.lane_calls import check_many_calls


def test_calls_under_way_together_are_answered_in_order_and_with_their_own_data() -> None:
    check_many_calls("cuda:0")
