"""The convolutions of blocks on tensor cores, for aligned rows of fp16 and bf16: each place of a
block in its row, any padding, and elements that no product may spread.
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.conv.gradients import check_gradients, drawn
from tests.kernels.suite import assert_right
from warpcall_kernels._conv import backward, forward
from warpcall_kernels.conv import OP as FORWARD
from warpcall_kernels.conv import conv
from warpcall_kernels.conv_backward import OP as BACKWARD
from warpcall_kernels.conv_backward import conv_backward
from warpcall_kernels.op.launch import Launch

BLOCKS, BANDS, DOT = "_blocks_kernel", "_bands_kernel", "_dot_kernel"


def names(launched: list[Launch]) -> list[str]:
    return [str(launch.kernel.fn.__name__) for launch in launched]


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize(
    ("length", "taps", "padding"),
    [
        (512, 257, 256),
        (512, 257, 100),  # as many matrices as a program may hold, and one block at a time
        (264, 129, 64),
        (200, 64, 0),
        (72, 65, 64),
        (8, 100, 50),
        (270, 129, 64),  # rows that begin at 4 bytes, and at 2
        (33, 60, 3),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_long_filters_take_matrices_that_are_built_once(
    length: int,
    taps: int,
    padding: int,
    dtype: torch.dtype,
    device: str,
    launched: list[Launch],
) -> None:
    x = drawn((3, 4, length), dtype, device)
    weight, bias = torch.randn(2, taps, device=device), torch.randn(4, device=device)
    weight, bias = weight.to(dtype), bias.to(dtype)

    out = conv(x, weight, bias, padding)

    assert names(launched) == [BANDS]
    inputs = {"x": x, "weight": weight, "bias": bias}
    assert_right(FORWARD, inputs, {"padding_l": padding}, out)


@pytest.mark.parametrize(("taps", "kernel"), [(129, BANDS), (200, DOT)])
def test_a_softmax_takes_two_matrices_for_each_band(
    taps: int, kernel: str, device: str, launched: list[Launch]
) -> None:
    x = drawn((1, 2, 264), torch.bfloat16, device)
    weight = torch.randn(1, taps, device=device).bfloat16()

    out = conv(x, weight, softmax_weight=True)

    assert names(launched) == [kernel]
    assert_right(FORWARD, {"x": x, "weight": weight}, {"softmax_weight": True}, out)


@pytest.mark.usefixtures("fresh_plans")
def test_a_program_takes_several_tiles_of_long_filters(
    device: str, launched: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (forward, backward):
        monkeypatch.setattr(module, "multiprocessors", lambda: 1)
        monkeypatch.setattr(module, "BANDS_PROGRAMS", 1)
        monkeypatch.setattr(module, "BANDS_PIECES", 16)
    x, g = drawn((2, 5, 1000), torch.float16, device), drawn((2, 5, 1000), torch.float16, device)
    x[1, 3, 900] = float("nan")
    weight = torch.randn(1, 70, device=device).half()

    out = conv(x, weight, padding_l=35)
    check_gradients(g, x.nan_to_num(), weight, padding_l=35)

    assert names(launched) == [BANDS, BANDS, BANDS, "_reduce_kernel"]
    assert all(launch.arguments["parts"] < launch.arguments["tiles"] for launch in launched[:-1])
    assert_right(FORWARD, {"x": x, "weight": weight}, {"padding_l": 35}, out)


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize(
    ("length", "taps", "padding", "halos"),
    [
        (512, 31, 30, (32, 0)),
        (264, 31, 0, (0, 32)),
        (136, 31, 15, (16, 16)),
        (72, 33, 32, (32, 0)),
        (200, 20, 9, (16, 16)),
        (72, 64, 63, (64, 0)),
        (200, 65, 32, (32, 32)),
        (32, 31, 30, (0, 0)),
        (24, 17, 8, (0, 0)),
        (32, 64, 40, (0, 0)),
        (132, 31, 15, (16, 16)),  # rows that begin at 8 bytes, at 4 and at 2
        (70, 20, 0, (0, 32)),
        (101, 64, 63, (64, 0)),
        (31, 17, 8, (0, 0)),
    ],
)
@pytest.mark.parametrize("softmax", [False, True])
def test_a_block_meets_its_neighbours_and_the_halos_of_its_piece(
    length: int,
    taps: int,
    padding: int,
    halos: tuple[int, int],
    softmax: bool,
    device: str,
    launched: list[Launch],
) -> None:
    shape = (3, 4, length)
    x, g = drawn(shape, torch.bfloat16, device), drawn(shape, torch.bfloat16, device)
    weight = torch.randn(2, taps, device=device).bfloat16()

    check_gradients(g, x, weight, padding_l=padding, softmax_weight=softmax)

    assert names(launched) == [BLOCKS, "_reduce_kernel"]
    assert (launched[0].arguments["LEFT"], launched[0].arguments["RIGHT"]) == halos
    wide = sum(halos) >= backward.BLOCK_HALOS
    stages = backward.WIDE_STAGES if wide else backward.BLOCK_STAGES
    assert launched[0].arguments["STAGES"] == stages


@pytest.mark.parametrize(
    ("taps", "padding", "bands"),
    [
        (66, 65, 3),
        (127, 126, 3),
        (128, 0, 3),
        (192, 191, 4),
        (192, 100, 5),
        (257, 256, 5),
        (257, 128, 5),
        (257, 100, None),  # one matrix more than a program may hold
    ],
)
@pytest.mark.parametrize("length", [8, 264, 269])
def test_a_program_sums_all_taps_of_long_filters(
    taps: int, padding: int, bands: int | None, length: int, device: str, launched: list[Launch]
) -> None:
    x, g = (drawn((3, 4, length), torch.float16, device) for _ in range(2))
    weight = torch.randn(2, taps, device=device).half() / taps

    check_gradients(g, x, weight, padding_l=padding)

    main = launched[-2]
    assert names([main]) == [DOT if bands is None else BANDS]
    if bands is not None:
        few = bands <= backward.BANDS_FEW
        assert main.arguments["BANDS"] == bands
        assert main.arguments["STAGES"] == (
            backward.BANDS_STAGES_FEW if few else backward.BANDS_STAGES
        )


@pytest.mark.parametrize(("length", "kernel"), [(200, BANDS), (32, BLOCKS)])
def test_halos_that_are_too_wide_for_blocks_go_to_bands(
    length: int, kernel: str, device: str, launched: list[Launch]
) -> None:
    x, g = (drawn((2, 4, length), torch.bfloat16, device) for _ in range(2))
    weight = torch.randn(2, 65, device=device).bfloat16()

    check_gradients(g, x, weight, padding_l=20)  # halos of 32 and 64; one block has none

    assert names(launched)[-2] == kernel


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize("blocks", [1, 2, 4])
@pytest.mark.parametrize("programs", [1, 1000])
def test_pieces_of_several_blocks_and_programs_of_several_tiles(
    blocks: int,
    programs: int,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backward, "BLOCK_SUPER", blocks)
    monkeypatch.setattr(backward, "multiprocessors", lambda: programs)
    monkeypatch.setattr(backward, "BLOCK_PROGRAMS", 1)
    monkeypatch.setattr(backward, "BLOCK_PIECES", 16)
    x, g = drawn((2, 5, 1000), torch.float16, device), drawn((2, 5, 1000), torch.float16, device)
    g[1, 3, 900] = float("nan")
    weight = torch.randn(1, 31, device=device).half()

    check_gradients(g, x, weight, padding_l=15)

    assert names(launched) == [BLOCKS, "_reduce_kernel"]
    assert launched[0].arguments["SUPER"] == blocks
    assert launched[0].arguments["ONCE"] == (programs == 1000)


@pytest.mark.parametrize(("taps", "kernel"), [(31, BLOCKS), (129, BANDS), (300, DOT)])
def test_the_gradient_of_a_filter_is_not_spoilt_by_what_it_never_met(
    taps: int, kernel: str, device: str, launched: list[Launch]
) -> None:
    x, g = drawn((1, 2, 200), torch.bfloat16, device), drawn((1, 2, 200), torch.bfloat16, device)
    x[0, 0, -1] = float("nan")  # taps below the padding never meet it
    weight = torch.ones(1, taps, device=device).bfloat16()

    grads = conv_backward(g, x, weight, padding_l=taps // 2)

    assert names(launched)[-2] == kernel  # the last one adds up the sums
    assert not grads[1].isnan().all()
    inputs = {"grad_output": g, "x": x, "weight": weight}
    assert_right(BACKWARD, inputs, {"padding_l": taps // 2}, grads)


@pytest.mark.parametrize(("length", "own"), [(1020, 8), (1022, 4)], ids=["aligned", "skewed"])
@pytest.mark.parametrize("taps", [17, 40])
def test_a_thread_takes_more_positions_of_fp32_under_many_taps(
    length: int, own: int, taps: int, device: str, launched: list[Launch]
) -> None:
    x, g = (
        drawn((2, 3, length), torch.float32, device),
        drawn((2, 3, length), torch.float32, device),
    )
    x[0, 0, -1] = float("nan")
    weight = torch.randn(1, taps, device=device)

    check_gradients(g, x, weight, padding_l=7)

    assert launched[-2].arguments["OWN"] == own  # the last one adds up the sums
