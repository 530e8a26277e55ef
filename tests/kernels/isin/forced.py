"""A variant of isin, whatever the rule takes, and the comparison that says what isin is."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from torch import Tensor

from warpcall_kernels._isin import rule
from warpcall_kernels._isin.plan import DTYPES, launches
from warpcall_kernels._isin.rule import Variant
from warpcall_kernels._isin.table import SetPlan
from warpcall_kernels.isin import run_plan
from warpcall_kernels.op.launch import Launch


def by_comparison(x: Tensor, test: Tensor) -> Tensor:
    """Compare each with each in the common dtype."""
    common = torch.promote_types(x.dtype, test.dtype)
    return (x.to(common)[..., None] == test.to(common).reshape(-1)).any(-1)


def planned(variant: Variant, x: Tensor, test: Tensor, *, invert: bool = False) -> Launch | SetPlan:
    """The launches of a variant."""
    common = DTYPES[torch.promote_types(x.dtype, test.dtype)]
    words = [tl.uint8 if t.dtype == torch.bool else None for t in (x, test)]
    return launches(variant, common, len(x), len(test), invert, words)


def planned_set(
    variant: Variant, dtype: torch.dtype, m: int, n: int, *, invert: bool = False
) -> SetPlan:
    """The launches of a variant that makes a set in device memory, for m elements and n test elements."""
    forced = launches(variant, DTYPES[dtype], m, n, invert, (None, None))
    assert isinstance(forced, SetPlan)
    return forced


def run_in(ws: Tensor, forced: SetPlan, x: Tensor, test: Tensor) -> Tensor:
    """The result of these launches, which leave the set in this workspace."""
    tensors = {"x": x, "t": test, "w": ws, "o": x.new_empty(x.shape, dtype=torch.bool)}
    for launch, takes in forced.launches:
        launch(*[tensors[name] for name in takes])
    return tensors["o"]


def by_variant(variant: Variant, x: Tensor, test: Tensor, *, invert: bool = False) -> Tensor:
    """The result of a variant."""
    return run_plan(planned(variant, x, test, invert=invert), x, test)


def leave_out_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rule take for a few test elements what it takes for many."""
    monkeypatch.setattr(rule, "MOST_SHARED", dict.fromkeys(rule.MOST_SHARED, 0))
    for name in ("NARROW", "WIDE", "FLOAT32", "FLOAT64"):
        monkeypatch.setattr(rule, name, getattr(rule, name)._replace(shared=()))
