"""Runs each op's small cases once, and what small tensors do not reach: what compute-sanitizer
watches.

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m tests.gpu.every_kernel

`--part 3/8` runs every eighth call, from the third on, so that processes share the work. Set PYTORCH_NO_CUDA_MEMORY_CACHING=1, so that each tensor is an allocation of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import ModuleType

import torch

from warpcall_kernels import ops
from warpcall_kernels._conv import fma_work
from warpcall_kernels._conv.fma_work import Work
from warpcall_kernels._isin import few_plan, plan, rule
from warpcall_kernels._softmax import constants as softmax_constants
from warpcall_kernels._transpose import constants
from warpcall_kernels.op.cases import Case, Sample, SampleLayout

LAYOUTS: tuple[SampleLayout, ...] = ("contiguous", "offset")
# Test elements, and how many for each element, from which on REVERSED is taken.
FEWER = ((4000, 4),)
# Constants that keep small tensors from the variants for large ones, and values with which they do
# not.
LOWERED_THRESHOLDS: tuple[tuple[ModuleType, str, object], ...] = (
    (constants, "UNALIGNED_MIN_SIDE", 32),
    (constants, "UNALIGNED_MIN_TILES", 0),
    (constants, "CHANNELS_MIN_BYTES", 0),
    (constants, "CHANNELS_MIN_PIXELS", 1),
    (constants, "STAGED_MIN_TILES", 1),
    (constants, "STAGED_FAR_BYTES", 0),
    (softmax_constants, "SPLIT_PROGRAMS", {2: 1, 4: 1}),
    (fma_work, "MANY_TILES", Work(7, 128, 256, 2, times=0, limited=False)),
    (few_plan, "SOME_ELEMENTS", 1000),
    (plan, "LOOKED_UP", ((1 << 62, 256, 4, 2),)),
    (plan, "FUSED_N", 6000),
    (plan, "MANY_MEMBERS", 5500),
    (plan, "SAMPLED_MEMBERS", 6000),
    (plan, "UNREAD", 5500),
    (plan, "ZEROED_FIRST", 1 << 13),
    (rule, "LEAST_MARKED", 15_000),
    (rule, "SCANNED_PAIRS", 1 << 22),
    (rule, "REVERSED_MAX_M", 7000),
    (rule, "NARROW", rule.NARROW._replace(reversed=FEWER, unfiltered=5999)),
    (rule, "WIDE", rule.WIDE._replace(reversed=FEWER)),
    (rule, "FLOAT64", rule.FLOAT64._replace(reversed=FEWER, unfiltered=5999)),
)


def further() -> Iterator[tuple[str, Case]]:
    """Ops, and cases that take the variants for large tensors once LOWERED_THRESHOLDS are set."""
    for dtype in (torch.uint8, torch.bfloat16, torch.float32):
        for layout in LAYOUTS:
            x = Sample((300, 141), dtype, layout=layout)
            yield "permute", Case("unaligned rows", {"x": x}, {"dims": (1, 0)})
            yield (
                "transpose-add",
                Case("unaligned rows", {"a": x, "b": Sample((141, 300), dtype)}, {}),
            )
            pixels = Sample((3, 4099, 3), dtype, layout=layout)
            yield "permute", Case("channels", {"x": pixels}, {"dims": (0, 2, 1)})
            odd = Sample((3, 37, 5, 43, 7), dtype, layout=layout)
            yield "permute", Case("staged", {"x": odd}, {"dims": (4, 2, 0, 3, 1)})
            rows = Sample((301, 97, 5), dtype, layout=layout)
            yield "permute", Case("staged rows", {"x": rows}, {"dims": (1, 0, 2)})
        for taps, padding in ((3, 2), (7, 3), (12, 6), (16, 15)):
            for length in (264, 260, 257):
                rows = Sample((3, 4, length), dtype if dtype.is_floating_point else torch.float64)
                inputs = {
                    "grad_output": rows,
                    "x": rows,
                    "weight": Sample((2, taps), rows.dtype),
                }
                yield "conv-backward", Case("taps", inputs, {"padding_l": padding})
    for columns, dtype in (
        *((20_001, torch.bfloat16), (32_768, torch.float16), (70_001, torch.bfloat16)),
        *((16_384, torch.float32), (20_003, torch.float32), (32_768, torch.float32)),
        *((5, torch.float32), (9001, torch.float64)),
    ):
        x = Sample((3, columns), dtype)
        mask = Sample((columns,), torch.bool, "mask")
        yield "masked-softmax", Case("long", {"x": x}, {"causal": True})
        yield "masked-softmax", Case("long, masked", {"x": x, "mask": mask}, {})
        yield "masked-softmax", Case("long, all positions count", {"x": x}, {})
        yield "masked-softmax-backward", Case("long", {"grad_output": x, "output": x}, {})
        bias = Sample((columns,), torch.bfloat16)
        yield "masked-softmax", Case("long, biased", {"x": x, "bias": bias}, {})
        both = {"grad_output": x, "output": x, "bias": bias}
        yield "masked-softmax-bias-backward", Case("long, biased", both, {})
    for dtype in (torch.int64, torch.int32):
        elements, some = (Sample((n,), dtype, "integers", 0, 40_000) for n in (1300, 5000))
        yield "isin", Case("blocks", {"elements": elements, "test_elements": some}, {})
        fewer, more = (Sample((n,), dtype, "integers", 0, 40_000) for n in (900, 6100))
        yield "isin", Case("elements as the set", {"elements": fewer, "test_elements": some}, {})
        yield "isin", Case("range apart", {"elements": more, "test_elements": more}, {})
        fewer, most = (Sample((n,), dtype, "integers", 0, 40_000) for n in (4200, 17_000))
        yield "isin", Case("ranges combined", {"elements": fewer, "test_elements": most}, {})
        fewest = Sample((20,), dtype, "integers", 0, 40_000)
        yield "isin", Case("read once", {"elements": fewest, "test_elements": most}, {})
        few = Sample((500,), dtype, "integers", 0, 40_000)
        yield "isin", Case("few as the set", {"elements": few, "test_elements": most}, {})
        for values in ("integers", "normal"):
            elements, some = (Sample((n,), dtype, values, 0, 700) for n in (40_000, 200))
            yield (
                "isin",
                Case("in declared memory", {"elements": elements, "test_elements": some}, {}),
            )
            elements, some = (Sample((n,), dtype, values, 0, 9000) for n in (1300, 3900))
            yield (
                "isin",
                Case("in reserved memory", {"elements": elements, "test_elements": some}, {}),
            )
            elements, some = (Sample((n,), dtype, values, 0, 900) for n in (300, 250))
            yield "isin", Case("split", {"elements": elements, "test_elements": some}, {})
    for dtype in (torch.uint8, torch.float16):
        elements, some = (Sample((n,), dtype, "integers", 0, 100) for n in (17_000, 2000))
        yield "isin", Case("bitmap", {"elements": elements, "test_elements": some}, {})
    for dtype in (torch.int32, torch.float64):
        elements, some = (Sample((n,), dtype, "normal") for n in (7100, 6100))
        yield "isin", Case("filtered", {"elements": elements, "test_elements": some}, {})


def main() -> None:
    """Call, wait, and say how many calls there were."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="1/1")
    part, parts = map(int, parser.parse_args().part.split("/"))
    for module, name, value in LOWERED_THRESHOLDS:
        setattr(module, name, value)
    small = [(op.name, c) for op in ops().values() for c in op.cases if c.size == "small"]
    calls = 0
    for name, case in [*small, *further()][part - 1 :: parts]:
        op = ops()[name]
        op.function(**case.tensors("cuda"), **op.check_params(case.params))
        calls += 1
    torch.cuda.synchronize()
    print(f"{calls} calls of {len(ops())} ops")  # noqa: T201  # a script


if __name__ == "__main__":
    main()
