"""Host functions with Triton kernels become launch plans, or are refused with the line at fault."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator

import pytest
import torch

from tests.kernels.verified.recording import HEAD, Recording, empty, meta
from warpcall_kernels.execution.inputs import BufferLayout
from warpcall_kernels.execution.process import RemoteFailed
from warpcall_kernels.verified.plan import Buffer, Copy, Fill, Launch, Place, Plan, View

pytestmark = pytest.mark.timeout(300)

COPY = (
    HEAD
    + """
@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)
"""
)


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    """One process for all tests."""
    process = Recording()
    yield process
    process.end()


def launches(plan: Plan) -> list[Launch]:
    """Of the first choices."""
    return [a for step in plan.steps for a in step[0].actions if isinstance(a, Launch)]


def test_a_launch_has_its_kernel_grid_and_arguments(recording: Recording) -> None:
    recording.load(
        COPY
        + """
def f(x):
    out = torch.empty_like(x)
    copy[triton.cdiv(x.numel(), 256), 1](x, out, x.numel(), BLOCK=256, num_warps=8)
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(33, 31)}, [meta(33, 31)])

    (kernel,), (step,) = plan.kernels, plan.steps
    assert (kernel.name, kernel.threads, kernel.cluster) == ("copy", (256, 1, 1), (1, 1, 1))
    assert kernel.parameters == ("*", "*", "i32", "*", "*")
    assert kernel.cubin.startswith(b"\x7fELF")
    assert [choice.label for choice in step] == [""]
    assert step[0].actions == (Launch(0, (4, 1, 1), (Place(0, 0), Place(1, 0), 1023, None, None)),)
    assert plan.buffers == (Buffer("x", 33 * 31 * 4), Buffer("", 33 * 31 * 4))
    assert (plan.outputs, plan.gpu) == ((Place(1, 0),), "sm_90")


def test_launches_on_several_streams_are_in_the_order_of_the_calls(recording: Recording) -> None:
    recording.load(
        COPY
        + """
def f(x):
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    mid, out = torch.empty_like(x), torch.empty_like(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        copy[1,](x, mid, x.numel(), BLOCK=32)
        done.record()
    torch.cuda.current_stream().wait_event(done)
    copy[1,](mid, out, x.numel(), BLOCK=32)
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(32)}, [meta(32)])

    assert [launch.arguments[:2] for launch in launches(plan)] == [
        (Place(0, 0), Place(1, 0)),
        (Place(1, 0), Place(2, 0)),
    ]


def test_the_alignment_and_the_strides_of_an_input_are_those_of_the_case(
    recording: Recording,
) -> None:
    recording.load(
        COPY
        + """
def f(x):
    assert (x.data_ptr() % 16, x.stride(), x.storage_offset() > 0) == (4, (40, 2), True)
    out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    copy[1,](x[1:, 3:], out, x.stride(0), BLOCK=64)
    return out
""",
        "f",
    )
    layout = BufferLayout(torch.float32, (3, 9), (40, 2), 1025, 2 * 40 + 8 * 2 + 1)

    plan = recording.plan({"x": layout}, [meta(3, 9)])

    assert launches(plan)[0].arguments[:3] == (Place(0, (40 + 6) * 4), Place(1, 0), 40)
    assert plan.buffers[0].nbytes == layout.span * 4


def test_forty_gigabytes_take_no_memory(recording: Recording) -> None:
    recording.load(
        COPY
        + """
import resource
def f(x):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, resource.RLIM_INFINITY))
    out = torch.zeros_like(x)
    y = x.t().contiguous().half()
    copy[triton.cdiv(x.numel(), 1024),](y, out, x.numel(), BLOCK=1024)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
    return out
""",
        "f",
    )
    rows = 100_003

    plan = recording.plan({"x": empty(rows, 100_000)}, [meta(rows, 100_000)])

    assert plan.allocated_bytes == rows * 100_000 * (4 + 4 + 2)
    assert launches(plan)[0].arguments[2] == rows * 100_000
    assert plan.kernels[0].parameters[2] == "i64"


def test_fills_and_copies_come_before_the_launch_that_follows(recording: Recording) -> None:
    recording.load(
        HEAD
        + """
@triton.jit
def take(x, out, other):
    tl.store(out, tl.load(x) + tl.load(other))

def f(x):
    out = x.new_full(x.shape, -1.5)
    wide = torch.ones(7, dtype=torch.int64, device=x.device)
    wide[2:4].zero_()
    out.fill_(0.5)
    out[1] = 2
    y = x.t().contiguous()
    take[1,](y, out, wide)
    take[1,](y, out, wide[4:].to(torch.float16))
    out[0].copy_(out[1])
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(4, 6)}, [meta(4, 6)])

    def bits(value: float) -> int:
        return int.from_bytes(struct.pack("<f", value), "little")

    f32 = torch.float32
    first, second, last = (step[0].actions for step in plan.steps)
    ones = [a for a in first if isinstance(a, Fill) and a.place.buffer not in (1, 2)]
    assert first[0] == Fill(Place(1, 0), 24, 4, bits(-1.5))
    assert [(one.count, one.nbytes, one.value) for one in ones] == [(1, 4, 1), (1, 4, 0)]
    assert Fill(Place(2, 16), 4, 4, 0) in first  # eight bytes of zeros are two times four
    assert Fill(Place(1, 0), 24, 4, bits(0.5)) in first
    assert Fill(Place(1, 24), 6, 4, bits(2.0)) in first
    copies = [a for a in first if isinstance(a, Copy)]
    assert copies[0].source == View(copies[0].source.place, torch.int64, (7,), (0,))
    assert copies[0].target == View(Place(2, 0), torch.int64, (7,), (1,))
    assert copies[1].source == View(Place(0, 0), f32, (6, 4), (1, 6))
    assert copies[1].target.strides == (4, 1)
    assert isinstance(first[-1], Launch)
    assert isinstance(second[-1], Launch)
    (converted,) = second[:-1]
    assert isinstance(converted, Copy)
    assert converted.source == View(Place(2, 32), torch.int64, (3,), (1,))
    assert converted.target.dtype == torch.float16
    assert last == (Copy(View(Place(1, 24), f32, (6,), (1,)), View(Place(1, 0), f32, (6,), (1,))),)


def test_each_configuration_is_a_choice_with_its_own_fills(recording: Recording) -> None:
    recording.load(
        HEAD
        + """
def clear(arguments):
    arguments["out"].zero_()

def prune(configs, named, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] != 32 and named["n"] == 100]

@triton.autotune(
    [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=2, pre_hook=clear),
     triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 2**21}), triton.Config({"BLOCK": 256})],
    key=["n"], prune_configs_by={"early_config_prune": prune}, reset_to_zero=["out"],
)
@triton.heuristics({"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
@triton.jit
def add(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.static_assert(BLOCK != 256)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + i, tl.load(x + i, mask=i < n), mask=i < n)

def f(x):
    out = torch.empty_like(x)
    y = x.clone()
    add[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](y, out, 100)
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(100)}, [meta(100)])

    (step,) = plan.steps
    assert [choice.label.split(",")[:2] for choice in step] == [
        ["BLOCK: 64", " num_warps: 4"],
        ["BLOCK: 128", " num_warps: 2"],
    ]
    assert [[type(a).__name__ for a in choice.actions] for choice in step] == [
        ["Copy", "Launch"],
        ["Copy", "Fill", "Launch"],
    ]
    grids = [a.grid for choice in step for a in choice.actions if isinstance(a, Launch)]
    assert grids == [(2, 1, 1), (1, 1, 1)]
    assert [kernel.threads[0] for kernel in plan.kernels] == [128, 64]


def test_if_no_configuration_compiles_the_error_names_the_line(recording: Recording) -> None:
    recording.load(
        HEAD
        + """
@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=[])
@triton.jit
def bad(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)

    tl.store(x + i, undefined)

def f(x):
    out = torch.empty_like(x)
    bad[1,](out)
    return out
""",
        "f",
    )

    with pytest.raises(RemoteFailed, match="undefined is not defined") as raised:
        recording.plan({"x": empty(100)}, [meta(100)])

    assert raised.value.status == "compile_error"
    assert raised.value.error.startswith("line 10: ")


def test_scalars_are_passed_in_the_types_of_the_kernel(recording: Recording) -> None:
    recording.load(
        HEAD
        + """
@triton.jit
def scalars(out, none, a, b, c, d, one, e, f: tl.float16, g: tl.bfloat16, h: tl.float64,
            i: tl.int8, pair, other, K: tl.constexpr):
    tl.store(out, a + b + c + d + one + e + f + g + h + i + pair[0] + K)
    tl.store(out + 1, tl.load(pair[1]))
    if none is None:
        tl.store(out + 2, tl.load(other))

def f(x, flag, scale):
    out = torch.empty_like(x)
    scalars[1,](out, None, 5, -(1 << 40), 1 << 63, flag, 1, scale, 0.1, 0.1, 0.1, 7,
                (3, x[2:], 1), x, K=3)
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(4)}, [meta(4)], {"flag": True, "scale": 1e300})

    (kernel,), (launch,) = plan.kernels, launches(plan)
    given = dict(zip(kernel.parameters, launch.arguments, strict=True))
    assert kernel.parameters[1:11] == (
        *("i32", "i64", "u64", "u1", "fp32", "fp16", "u16", "fp64", "i8", "i32"),
    )
    assert launch.arguments[:6] == (Place(1, 0), 5, -(1 << 40), 1 << 63, 1, math.inf)
    assert given["u16"] == 0x3DCD  # 0.1 in bf16
    assert given["fp64"] == 0.1
    assert launch.arguments[6] == struct.unpack("<e", struct.pack("<e", 0.1))[0]
    assert launch.arguments[9:] == (7, 3, Place(0, 8), Place(0, 0), None, None)


def test_outputs_may_be_several_in_any_order(recording: Recording) -> None:
    recording.load(
        COPY
        + """
def f(x, second):
    both = torch.empty(2, *x.shape, device=x.device)
    rest = x.new_empty(3, dtype=torch.int8)
    unused = torch.empty(99, device="cuda")
    copy[1,](x, both, 4, BLOCK=64)
    return both[1], (rest if second else None), both[0]
""",
        "f",
    )

    plan = recording.plan(
        {"x": empty(4)}, [meta(4), meta(3, dtype=torch.int8), meta(4)], {"second": True}
    )
    without = recording.plan({"x": empty(4)}, [meta(4), meta(4)], {"second": False})

    assert plan.outputs == (Place(1, 16), Place(2, 0), Place(1, 0))
    assert plan.buffers == (Buffer("x", 16), Buffer("", 32), Buffer("", 3))
    assert without.outputs == (Place(1, 16), Place(1, 0))
    assert len(without.buffers) == 2


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return x", "out0 must have memory of its own, it shares some with the input x"),
        ("return x.view(-1)[:]", "shares some with the input x"),
        (
            "return x.new_empty(4, 4)",
            r"must be float32 of shape \(4,\).*, got float32 of shape \(4, 4\)",
        ),
        ("return x.new_empty(4, dtype=torch.half)", "got float16 of shape"),
        ("return x.new_empty(8)[::2]", "must be contiguous, got strides"),
        ("return None", "there must be 1 outputs, got 0"),
        ("return [x.new_empty(4)] * 2", "there must be 1 outputs, got 2"),
        ("return 3", "must be a torch.Tensor, got int"),
        ("return CACHED", "out0 is a tensor of the CPU, one with values of the host, or one from"),
        (
            "return x.new_tensor([1.0, 2, 3, 4])",
            "out0 is a tensor of the CPU, one with values of the",
        ),
        (
            "return torch.randn_like(x)",
            r"it computes with torch \(aten.randn_like.default\) \(line 4",
        ),
        ("return x.squeeze_()", r"it computes with torch \(aten.squeeze_.default\) \(line 4"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return torch.empty(4)", "out0 is a tensor of the CPU"),
        (
            "return x.sum(0)",
            r"it computes with torch \(aten.sum.dim_IntList\) \(line 4\): only laun",
        ),
        (
            "return torch.softmax(x, 0)",
            r"it computes with torch \(aten._softmax.default\) \(line 4",
        ),
        ("return x + 1", r"it computes with torch \(aten.add.Tensor\) \(line 4\)"),
        ("return torch.cat([x[:2], x[2:]])", r"it computes with torch \(aten.cat.default\)"),
        ("if x[0] > 1: return x", r"it computes with torch \(aten.gt.Scalar\) \(line 4\)"),
        ("if x[0]: return x", r"it reads values of a tensor \(.*\) \(line 4\)"),
        ("return x.max().item()", r"it computes with torch \(aten.max.default\) \(line 4\)"),
        ("return x[0].item()", r"it reads values of a tensor \(item\) \(line 4\): launches must"),
        ("return x.tolist()", r"it reads values of a tensor \(tolist\) \(line 4\)"),
        ("return x.cpu()", r"it reads values of a tensor \(cpu\) \(line 4\)"),
        ("return x.numpy()", r"it reads values of a tensor \(numpy\) \(line 4\)"),
        ("print(x)", r"it reads values of a tensor \(__repr__\) \(line 4\)"),
        ("for v in x: int(v)", r"it reads values of a tensor \(__int__\) \(line 4\)"),
        ("x.zero_(); return x.clone()", r"it fills the input x \(line 4\): inputs must not change"),
        ("x.copy_(x.clone()); return x", r"it copies to the input x \(line 4\)"),
        ("x[1:] = 3; return x", r"it fills the input x \(line 4\)"),
        ("x.view(torch.int32).add_(1)", r"it computes with torch \(aten.add_.Tensor\)"),
        ("return x.new_empty(1 << 45, dtype=torch.int8)", r"it allocates \d+ bytes \(line 4\), at"),
        ("return x.nosuch", "AttributeError: 'Tensor' object has no attribute 'nosuch'"),
        (
            "try:\n  x.sum(0)\n except Exception:\n  return x.new_empty(4)",
            r"it computes with torch \(aten.sum.dim_IntList\) \(line 5\)",
        ),
    ],
)
def test_what_is_no_launch_allocation_fill_or_copy_is_refused(
    recording: Recording, body: str, text: str
) -> None:
    recording.load(
        f"import torch\nCACHED = torch.empty(4, device='cuda')\ndef f(x):\n {body}\n", "f"
    )

    with pytest.raises(RemoteFailed, match=text) as raised:
        recording.plan({"x": empty(4)}, [meta(4)])

    assert raised.value.status == "error"
    assert (raised.value.traceback is None) == (not re.match("AttributeError|SystemExit", text))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("copy[1,](CACHED, out, 4, BLOCK=64)", "x of copy is a tensor of the CPU, one with values"),
        ("copy[1,](torch.empty(4), out, 4, BLOCK=64)", "x of copy is a tensor of the CPU"),
        ("copy[1, 70000](x, out, 4, BLOCK=64)", r"the grid of copy is \(1, 70000, 1\).*allows at"),
        ("copy[1,](x, out, x.data_ptr(), BLOCK=64)", "n of copy is the address of a tensor as a n"),
        ("for _ in range(9): copy[1,](x, out, 4, BLOCK=64)", "launches more than 8 kernels in one"),
        ("copy[1,](TensorDescriptor.from_tensor(x, [4]), out, 4, BLOCK=64)", "CompilationError"),
        ("tma[1,](TensorDescriptor.from_tensor(x, [4]), out)", "tma gets a tensor descriptor"),
        ("own[1,](x, out)", "own needs scratch memory that Triton allocates"),
        ("many[1,](x, out, 4)", "an autotuner has more than 64 configurations"),
    ],
)
def test_launches_that_no_plan_can_have_are_refused(
    recording: Recording, call: str, text: str
) -> None:
    source = (
        COPY
        + f"""
from triton.tools.tensor_descriptor import TensorDescriptor
CACHED = torch.empty(4, device="cuda")
many = triton.autotune([triton.Config({{"BLOCK": 64}}, num_stages=n) for n in range(65)], [])(copy)

@triton.jit
def tma(x, out):
    tl.store(out + tl.arange(0, 4), x.load([0]))

@triton.jit
def own(x, out):
    d = tl.make_tensor_descriptor(x, [16, 16], [16, 1], [16, 16])
    d.store([0, 0], d.load([0, 0]) + 1)

def f(x):
    out = torch.empty_like(x)
    {call}
    return out
"""
    )
    recording.load(source, "f")
    line = source[: source.index(call)].count("\n") + 1

    with pytest.raises(RemoteFailed, match=text) as raised:
        recording.plan({"x": empty(64)}, [meta(64)])

    if raised.value.status == "error":
        assert f"(line {line})" in raised.value.error
        assert raised.value.traceback is None


def test_nothing_is_launched_without_blocks_and_by_warmup(recording: Recording) -> None:
    recording.load(
        COPY
        + """
def f(x):
    out = torch.empty_like(x)
    compiled = copy.warmup(x, out, 4, BLOCK=64, grid=(1,))
    compiled._init_handles()
    assert 0 < compiled.n_regs < 256 and compiled.metadata.shared == 0
    copy[0,](x, out, 4, BLOCK=64)
    copy.run(x, out, compiled.n_regs, grid=(3,), warmup=False, BLOCK=64)
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(4)}, [meta(4)])

    assert [launch.grid for launch in launches(plan)] == [(3, 1, 1)]


def test_code_sees_a_gpu_of_the_architecture(recording: Recording) -> None:
    recording.load(
        COPY
        + """
DEVICE = triton.runtime.driver.active.get_active_torch_device()
def f(x):
    assert x.is_cuda and x.device == DEVICE and torch.cuda.get_device_capability() == (10, 0)
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    properties = triton.runtime.driver.active.utils.get_device_properties(DEVICE.index)
    assert properties["multiprocessor_count"] == sms
    with torch.cuda.device(x.device):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        copy[sms,](x, out, 4, BLOCK=64)
    torch.cuda.synchronize()
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(4)}, [meta(4)], gpu="sm_100")

    assert plan.gpu == "sm_100"
    assert launches(plan)[0].grid == (148, 1, 1)


def test_clusters_and_cooperative_and_early_launches_are_recorded(recording: Recording) -> None:
    recording.load(
        COPY
        + """
def f(x):
    out = torch.empty_like(x)
    copy[5, 2](x, out, 4, BLOCK=64, num_ctas=2)
    copy[5,](x, out, 4, BLOCK=64, launch_cooperative_grid=True)
    copy[5,](x, out, 4, BLOCK=64, launch_pdl=True)
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(4)}, [meta(4)])

    first, second, third = launches(plan)
    assert first.grid == (10, 2, 1)
    assert plan.kernels[first.kernel].cluster == (2, 1, 1)
    assert (second.cooperative, second.early) == (True, False)
    assert (third.cooperative, third.early) == (False, True)


def test_equal_kernels_are_one_and_calls_do_not_change_each_other(recording: Recording) -> None:
    recording.load(
        COPY
        + """
scratch = {}
def f(x):
    out = torch.empty_like(x)
    if "kept" not in scratch:
        scratch["kept"] = torch.zeros(4, device=x.device)
    copy[1,](x, scratch["kept"], 32, BLOCK=64)
    copy[1,](scratch["kept"], out, 16, BLOCK=64)
    return out
""",
        "f",
    )

    plan = recording.plan({"x": empty(4)}, [meta(4)])
    with pytest.raises(RemoteFailed, match="out of copy is a tensor of the CPU, one with values"):
        recording.plan({"x": empty(4)}, [meta(4)])

    assert len(plan.kernels) == 1
    assert len(launches(plan)) == 2


def test_an_import_that_fails_fails_each_case(recording: Recording) -> None:
    recording.load("import nosuch", "f")

    for _ in range(2):
        with pytest.raises(RemoteFailed, match="ModuleNotFoundError: No module named 'nosuch'"):
            recording.plan({"x": empty(4)}, [meta(4)])


def test_math_functions_with_tables_pass_the_inspection(recording: Recording) -> None:
    source = """
from triton.language.extra import libdevice


@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n)
    double = value.to(tl.float64)
    tables = libdevice.sin(double) + libdevice.tan(double) + libdevice.tgamma(double)
    tl.store(out + at, tables.to(tl.float32) + tl.sin(value) + libdevice.j0(value), at < n)


def mine(x):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out
"""
    for gpu in ("sm_90", "sm_100"):
        recording.load(HEAD + source, "mine")
        recording.plan({"x": empty(100)}, [meta(100)], gpu=gpu)  # which is inspected
