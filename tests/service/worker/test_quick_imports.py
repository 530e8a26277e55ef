"""Imports without the garbage collector: what they leave, whatever happens in them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from warpcall_service.processes.imports import quick_imports


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """The collector of this process, as it was."""
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_while_modules_are_imported_and_they_are_not_scanned_later() -> None:
    kept: list[list[int]] = []

    with quick_imports():
        assert not gc.isenabled()
        kept += [[number] for number in range(100)]

    assert gc.isenabled()
    assert gc.get_freeze_count() >= 100
    assert not any(one is kept for one in gc.get_objects())  # those that it would scan


def test_the_collector_goes_on_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), quick_imports():
        raise ImportError

    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()

    with quick_imports():
        pass

    assert not gc.isenabled()
