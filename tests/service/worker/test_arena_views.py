"""Tensors of a call in the arena, and which calls a GPU may read and write there."""

from __future__ import annotations

import mmap

import pytest
import torch

from tests.service.worker.lane_calls import permutation
from warpcall_service.devices.tensors import OpCall
from warpcall_service.devices.views import DIRECT_BYTES, ArenaViews

TARGET = 1 << 20


@pytest.fixture
def arena() -> mmap.mmap:
    return mmap.mmap(-1, 2 * TARGET)


@pytest.fixture
def views(arena: mmap.mmap) -> ArenaViews:
    """With the CPU as the device: it, too, reads the arena."""
    return ArenaViews(arena, torch.frombuffer(arena, dtype=torch.uint8))


def test_outputs_of_a_small_call_are_where_its_answer_is_read(
    arena: mmap.mmap, views: ArenaViews
) -> None:
    call = views.of(permutation((3, 5)), 0, TARGET)

    outputs = views.outputs_on_device(call, TARGET)

    assert outputs is not None
    assert outputs["out"].shape == (5, 3)
    outputs["out"].fill_(7.0)
    (_, answer) = call.outputs[0]
    assert (answer == 7.0).all()
    assert torch.frombuffer(arena, dtype=torch.float32, count=16, offset=TARGET).tolist() == [
        *[7.0] * 15,
        0.0,
    ]


@pytest.mark.parametrize(
    ("work", "target"),
    [
        pytest.param(permutation((1, DIRECT_BYTES // 4 + 1)), TARGET, id="many bytes"),
        pytest.param(permutation((3, 5), x_at=4), TARGET, id="an input that is not aligned"),
        pytest.param(permutation((3, 5), out_at=4), TARGET, id="an output that is not aligned"),
        pytest.param(permutation((3, 5)), TARGET + 8, id="a slot that is not aligned"),
        pytest.param(permutation((0, 5)), TARGET, id="nothing"),
    ],
)
def test_other_calls_are_not_captured(views: ArenaViews, work: OpCall, target: int) -> None:
    assert views.outputs_on_device(views.of(work, 0, target), target) is None


def test_a_device_that_cannot_read_the_arena_captures_nothing(arena: mmap.mmap) -> None:
    views = ArenaViews(arena, None)

    assert views.outputs_on_device(views.of(permutation((3, 5)), 0, TARGET), TARGET) is None


def test_views_are_kept_for_the_same_plan_and_slots_only(views: ArenaViews) -> None:
    work, other = permutation((3, 5)), permutation((3, 5))
    first = views.of(work, 0, TARGET)

    assert views.of(work, 0, TARGET) is first
    assert views.of(work, 64, TARGET) is not first
    assert views.of(work, 0, TARGET + 64) is not first
    assert views.of(other, 0, TARGET) is not first
