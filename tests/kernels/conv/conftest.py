"""Fixtures of the tests of convolutions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_plans() -> Iterator[None]:
    """Plans are made again in the test, and after it: they depend on constants that it changes."""
    from warpcall_kernels._conv import forward

    gradients = importlib.import_module("warpcall_kernels.conv_backward")
    caches = forward.plan, gradients._plan
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
