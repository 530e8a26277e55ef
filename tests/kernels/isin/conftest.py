"""Fewer programs where Triton's interpreter runs one after the other."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def few_programs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a set be made by few programs, of which most would find nothing to do."""
    # not above: this file is read before TRITON_INTERPRET is set
    from warpcall_kernels._isin import filtered_plan, plan, rule, table

    if device != "cpu":
        return
    monkeypatch.setattr(plan, "PREPARING", 8)
    for module in (table, plan, filtered_plan):
        monkeypatch.setattr(module, "RANGES", 16)
    for module in (table, filtered_plan):
        monkeypatch.setattr(module, "SEGMENTS", 16)
    monkeypatch.setattr(filtered_plan, "SHARING", 2)
    monkeypatch.setattr(filtered_plan, "JUDGING", 8)
    monkeypatch.setattr(filtered_plan, "KEEP_BLOCK", 512)
    monkeypatch.setattr(plan, "BUILT", ((rule.EVERY, 256, 1),))
