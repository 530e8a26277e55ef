"""Memory of inputs and outputs: what lies where, and what has been changed."""

from __future__ import annotations

import os
import random
from typing import get_args

import pytest
import torch

from warpcall_kernels.execution.inputs import (
    GUARD_BYTES,
    PLACES,
    Buffer,
    BufferLayout,
    Pool,
    is_image,
    layout_of,
    pool_size,
    values_of,
)
from warpcall_kernels.execution.outputs import Extent, Wrong, check_extents
from warpcall_kernels.execution.windows import Unreachable, Window, address_of
from warpcall_kernels.op.cases import Sample, SampleLayout

CPU = torch.device("cpu")
LAYOUTS: tuple[SampleLayout, ...] = get_args(SampleLayout)


def share_some(outputs: list[Extent], taken: list[Extent]) -> bool:
    """The same as `check_extents`, by comparing each with each."""
    pairs = [(one, other) for i, one in enumerate(outputs) for other in outputs[:i]]
    pairs += [(one, other) for one in outputs for other in taken]
    return any(
        a_bytes and b_bytes and a < b + b_bytes and b < a + a_bytes
        for (_, a, a_bytes), (_, b, b_bytes) in pairs
    )


def test_extents_are_refused_exactly_where_two_share_memory() -> None:
    draw = random.Random(1)
    seen = {False: 0, True: 0}
    for _ in range(20_000):
        outputs, taken = (
            [
                (f"{kind}{i}", draw.randrange(60), draw.randrange(8))
                for i in range(draw.randrange(5))
            ]
            for kind in ("out", "in")
        )
        expected = share_some(outputs, taken)
        seen[expected] += 1
        try:
            check_extents(outputs, taken)
        except Wrong:
            assert expected, (outputs, taken)
        else:
            assert not expected, (outputs, taken)

    assert min(seen.values()) > 1000


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.float16])
def test_values_of_a_pool_are_those_of_the_buffer_they_are_written_to(
    layout: SampleLayout, dtype: torch.dtype
) -> None:
    sample = Sample((3, 4, 6), dtype, layout=layout)
    pool = Pool.draw({"x": sample}, 7, CPU)
    buffer = Buffer(pool.layouts["x"], CPU)
    for place in (0, 11, PLACES - 1):
        values = pool.at(place)

        buffer.write(values.flat["x"])

        assert torch.equal(buffer.tensor, values.tensors["x"])
        assert buffer.tensor.stride() == sample.meta().stride()
        assert buffer.has_only(values.flat["x"])
    assert pool.flat["x"].numel() == pool_size(pool.layouts["x"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_the_same_after_it_was_sent(layout: SampleLayout) -> None:
    found = layout_of(Sample((3, 5, 4), torch.bfloat16, layout=layout))

    assert BufferLayout.from_json(found.to_json()) == found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_changed_byte_of_a_buffer_is_found(layout: SampleLayout) -> None:
    sample = Sample((2, 4), torch.int16, layout=layout)
    values = values_of({"x": sample.draw(torch.Generator().manual_seed(1))}).flat["x"]
    form = layout_of(sample)
    buffer = Buffer(form, CPU)
    buffer.write(values)
    begin = form.begin * form.dtype.itemsize
    end = begin + form.span * form.dtype.itemsize
    assert is_image(buffer.bytes, form, values)

    for at in (0, GUARD_BYTES // 2, begin - 1, begin, end - 1, end, len(buffer.bytes) - 1):
        buffer.bytes[at] ^= 1
        assert not is_image(buffer.bytes, form, values), at
        buffer.bytes[at] ^= 1

    assert buffer.has_only(values)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_an_input_may_have_no_elements_or_no_dims(shape: tuple[int, ...]) -> None:
    pool = Pool.draw({"x": Sample(shape, torch.float32)}, 1, CPU)
    buffer = Buffer(pool.layouts["x"], CPU)

    buffer.write(pool.at(3).flat["x"])

    assert tuple(buffer.tensor.shape) == shape
    assert buffer.has_only(pool.at(3).flat["x"])


def test_a_window_reads_and_writes_memory_of_a_process() -> None:
    theirs = torch.arange(6, dtype=torch.uint8)
    window = Window(os.getpid(), CPU)

    window.write(address_of(theirs[2:]), torch.tensor([9, 8], dtype=torch.uint8))

    assert window.read(address_of(theirs), 6).tolist() == [0, 1, 9, 8, 4, 5]
    assert window.read({"address": 0}, 0).numel() == 0
    window.write({"address": 0}, torch.empty(0, dtype=torch.uint8))
    window.close()


@pytest.mark.parametrize("address", [0, 8, (1 << 63) - 1])
def test_memory_that_is_not_there_cannot_be_reached(address: int) -> None:
    window = Window(os.getpid(), CPU)

    with pytest.raises(Unreachable, match="its memory cannot be reached"):
        window.read({"address": address}, 8)
    with pytest.raises(Unreachable, match="its memory cannot be reached"):
        window.write({"address": address}, torch.zeros(8, dtype=torch.uint8))


def test_memory_of_a_process_that_has_ended_cannot_be_reached() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)

    with pytest.raises(Unreachable, match="No such process"):
        Window(pid, CPU).read({"address": 4096}, 8)
