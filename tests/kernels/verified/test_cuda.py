"""CUDA C++ without a GPU: NVRTC compiles it, and a plan follows from its declaration."""

from __future__ import annotations

import copy
import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from triton import knobs

from tests.kernels.verified import cuda_sources as sources
from tests.kernels.verified.cuda_sources import kernel_of
from warpcall_kernels.compile.architectures import ARCHITECTURES, architecture
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified import nvrtc
from warpcall_kernels.verified.cubin import Cubin
from warpcall_kernels.verified.cuda import check_source, plan_of_source
from warpcall_kernels.verified.declaration import Declaration, InvalidDeclaration
from warpcall_kernels.verified.inspection import Refused, inspect
from warpcall_kernels.verified.nvrtc import CudaCompileError, compile_source
from warpcall_kernels.verified.plan import Fill, Launch, Place, Plan

H200 = architecture("sm_90")


@pytest.fixture(autouse=True, scope="module")
def _compiler(pytestconfig: pytest.Config) -> None:
    """A GPU machine has its own Python, which may lack the compiler. Here it is always there."""
    if pytestconfig.getoption("--device") != "cpu":
        pytest.importorskip("cuda.bindings.nvrtc")


@dataclass(frozen=True)
class Layout:
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    span: int


X = Layout(torch.bfloat16, (10, 300), (300, 1), 3000)
BIAS = Layout(torch.float32, (10,), (1,), 10)
OUT = {"out": Meta((10,), torch.float32)}


def row_sums(*, bias: Layout | None = None, **changes: Any) -> Plan:
    declaration = Declaration.from_json({**sources.ROW_SUMS_LAUNCHES, **changes})
    inputs = {"x": X, "bias": bias}
    return plan_of_source(sources.ROW_SUMS, declaration, inputs, {"scale": 0.5}, OUT, H200)


def one_launch(**changes: Any) -> Declaration:
    """A declaration of one launch of the kernel `k(const float* x, float* out, int n)`."""
    launch = {
        "kernel": "k",
        "grid": ["cdiv(x.numel, 256)"],
        "block": [256],
        "arguments": ["x", "out", {"i32": "x.numel"}],
    }
    return Declaration.from_json({"launches": [{**launch, **changes}]})


def plan_of(source: str, declaration: Declaration, gpu: str = "sm_90") -> Plan:
    inputs = {"x": Layout(torch.float32, (1000,), (1,), 1000)}
    outputs = {"out": Meta((1000,), torch.float32)}
    return plan_of_source(source, declaration, inputs, {}, outputs, architecture(gpu))


def test_each_configuration_is_a_choice_of_fills_and_launches() -> None:
    plan = row_sums(bias=BIAS)

    checked = Plan.from_json(json.loads(json.dumps(plan.to_json())), {"x": 6000, "bias": 40}, [40])
    assert checked == plan
    inspect(plan)
    (step,) = plan.steps
    assert [choice.label for choice in step] == ["THREADS=128", "THREADS=256"]
    assert [buffer.input for buffer in plan.buffers] == ["x", "bias", "", ""]
    assert [buffer.nbytes for buffer in plan.buffers] == [6000, 40, 40, 10 * 3 * 4]
    assert plan.outputs == (Place(2, 0),)
    for choice, parts, threads in zip(step, (3, 2), (128, 256), strict=True):
        fill, first, second = choice.actions
        assert fill == Fill(Place(3, 0), 10 * parts, 4, 0)
        assert isinstance(first, Launch)
        assert isinstance(second, Launch)
        assert first.arguments == (Place(0, 0), Place(3, 0), 300, 0.5, Place(1, 0))
        assert second.arguments == (Place(3, 0), Place(2, 0), parts)
        assert (first.grid, second.grid) == ((parts, 10, 1), (10, 1, 1))
        kernel = plan.kernels[first.kernel]
        assert (kernel.name, kernel.threads) == ("sum_parts", (threads, 1, 1))
        assert kernel.parameters == ("*", "*", "i32", "fp32", "*")


def test_an_optional_input_that_is_not_given_is_null() -> None:
    launch = row_sums().steps[0][0].actions[1]

    assert isinstance(launch, Launch)
    assert launch.arguments[-1] is None


def test_integers_of_a_configuration_are_macros() -> None:
    body = "static_assert(SIZE == 7 && FLAG == 1); out[i] = SIZE;"
    compile_source(kernel_of(body), {"SIZE": 7, "FLAG": True, "SCALE": 0.5}, H200)

    with pytest.raises(CudaCompileError, match="SCALE"):
        compile_source(kernel_of("out[i] = SCALE;"), {"SCALE": 0.5}, H200)


def test_configurations_that_cannot_be_compiled_or_launched_are_left_out() -> None:
    large = 'extern "C" __global__ void k(float* out) { static_assert(SIZE != 3); __shared__ float s[1000]; s[threadIdx.x] = SIZE; __syncthreads(); out[0] = s[SIZE % 7]; }'
    launch = {
        "kernel": "k",
        "grid": [1],
        "block": [32],
        "arguments": ["out"],
        "shared_bytes": "60000 * SIZE",
    }

    def labels(*configurations: dict[str, int]) -> list[str]:
        declaration = Declaration.from_json(
            {"configurations": [*configurations], "launches": [launch]}
        )
        return [choice.label for choice in plan_of(large, declaration).steps[0]]

    assert labels({"SIZE": 3}, {"SIZE": 1}, {"SIZE": 4}, {"SIZE": 2}) == ["SIZE=1", "SIZE=2"]
    with pytest.raises(CudaCompileError, match=r"kernel.cu\(1\): error: static assertion failed"):
        labels({"SIZE": 3}, {"SIZE": 4})
    with pytest.raises(Refused, match="k: a block needs 244000 bytes of shared memory"):
        labels({"SIZE": 4}, {"SIZE": 3})


@pytest.mark.slow
def test_too_many_kernels_are_refused() -> None:
    source = kernel_of("out[i] = A;")
    launch = {"kernel": "k", "grid": [1], "block": [32], "arguments": ["x", "out", {"i32": 1}]}
    configurations = [{"A": n} for n in range(33)]
    declaration = Declaration.from_json(
        {"configurations": configurations, "launches": [launch, {**launch, "block": [64]}]}
    )

    with pytest.raises(
        InvalidDeclaration,
        match="configurations: together they have 66 kernels, of which there may be 64",
    ):
        plan_of(source, declaration)


@pytest.mark.parametrize(
    "gpu",
    [
        "sm_90",
        "sm_100",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("sm_80", "sm_89", "sm_120")),
    ],
)
def test_what_honest_kernels_use_passes_the_inspection(gpu: str) -> None:
    for body in sources.HONEST.values():
        source = kernel_of(body, sources.FUNCTIONS)
        inspect(plan_of(source, one_launch(shared_bytes=4096), gpu))


def test_tensor_cores_and_clusters_pass_the_inspection() -> None:
    three = one_launch(arguments=["x", "x", "out"], block=[32])
    out = one_launch(arguments=["out"], block=[128], cooperative=True)

    for gpu in ("sm_80", "sm_90", "sm_100"):
        inspect(plan_of(sources.TENSOR_CORES, three, gpu))
    inspect(plan_of(sources.HOPPER, out))
    plan = plan_of(sources.CLUSTERS, out)
    inspect(plan)
    assert plan.kernels[0].cluster == (2, 1, 1)
    launch = plan.steps[0][0].actions[0]
    assert isinstance(launch, Launch)
    assert launch.cooperative


@pytest.mark.parametrize("name", sources.FORBIDDEN)
def test_what_verified_kernels_may_not_do_is_refused(name: str) -> None:
    before, body, text = sources.FORBIDDEN[name]

    with pytest.raises(Refused) as caught:
        plan_of(kernel_of(body, before), one_launch())

    assert text in str(caught.value)


def test_variables_that_no_kernel_uses_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    unused = """
    __device__ int counter = 3;
    __device__ int* address = &counter;
    __managed__ float zeros[1 << 20];
    """

    plan_of(kernel_of("out[i] = 1;", unused), one_launch())
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", knobs.nvidia.ptxas.path)  # an older one
    plan_of(kernel_of("out[i] = 1;", unused), one_launch())
    with pytest.raises(Refused, match=r"variable in global memory \(address, counter\)"):
        plan_of(kernel_of("out[i] = *address;", unused), one_launch())


def test_kernels_are_for_the_gpu_of_the_job() -> None:
    for gpu in ARCHITECTURES.values():
        if gpu.name != "sm_103":
            code = compile_source(kernel_of("out[i] = 1;"), {}, gpu)
            assert Cubin.parse(code).capability == gpu.capability


@pytest.mark.parametrize(
    "header",
    ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "cuda_pipeline.h", "cuda_runtime.h", "cuda/ptx", *nvrtc.STANDARD_HEADERS],
)  # fmt: skip
def test_headers_are_found(header: str) -> None:
    assert compile_source(f"#include <{header}>\n" + kernel_of("out[i] = 1;"), {}, H200)


def test_headers_of_c_have_what_kernels_take_from_them() -> None:
    lines = [f"#include <{header}>" for header in (*nvrtc.STANDARD_HEADERS, "cuda/std/limits")]
    body = (
        "uint8_t a = 255; int64_t b = 1ll << 40; size_t c = sizeof(uintptr_t); "
        "out[i] = a + b + c + FLT_MAX + DBL_EPSILON + INT_MAX + UINT_MAX + LLONG_MIN + CHAR_BIT + fabsf(x[i]); "
        "static_assert(sizeof(int64_t) == 8 && sizeof(uint16_t) == 2);"
    )

    assert compile_source("\n".join(lines) + kernel_of(body), {}, H200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpus"),
    [*zip(sources.TEMPLATES, (("sm_90", "sm_100"), ("sm_80",), ("sm_80", "sm_90")), strict=True)],
)
def test_kernels_with_templates_of_cuda_pass_the_inspection(
    name: str, gpus: tuple[str, ...]
) -> None:
    """Each compile takes over a second; a template has the same instructions on most GPUs."""
    before, body = sources.TEMPLATES[name]

    for gpu in gpus:
        inspect(plan_of(kernel_of(body, before), one_launch(), gpu))


def test_errors_have_the_lines_of_the_source_and_no_paths() -> None:
    with pytest.raises(CudaCompileError) as caught:
        compile_source("// a kernel\n" + kernel_of("out[j] = x[i]"), {}, H200)
    assert 'kernel.cu(6): error: identifier "j" is undefined' in str(caught.value)
    assert 'kernel.cu(7): error: expected a ";"' in str(caught.value)

    with pytest.raises(CudaCompileError) as caught:
        compile_source("#include <cuda.h>", {}, H200)
    assert "\ncuda.h(" in f"\n{caught.value}"
    assert nvrtc.include_folders()[0] not in str(caught.value)


def test_long_errors_are_cut() -> None:
    with pytest.raises(CudaCompileError) as caught:
        compile_source(
            kernel_of("\n".join(f"out[{'q' * 60}{n}] = {n};" for n in range(90))), {}, H200
        )

    assert 2000 < len(str(caught.value)) <= nvrtc.MOST_LOG_BYTES


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("\0", "a byte that is 0"),
        ("// \udc80", "no text in UTF-8"),
        ("#error no", "#error"),
    ],
)
def test_what_is_no_source_is_refused(source: str, text: str) -> None:
    with pytest.raises(CudaCompileError, match=text):
        compile_source(source, {}, H200)


def test_what_ptxas_refuses_is_an_error_of_the_source() -> None:
    with pytest.raises(CudaCompileError, match="nonsense"):
        compile_source(kernel_of('asm volatile("nonsense;");'), {}, H200)


def test_code_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "MOST_CUBIN_BYTES", 2000)  # as much as that takes NVRTC minutes

    with pytest.raises(CudaCompileError, match="bytes of code, at most 2000"):
        compile_source(kernel_of("out[i] = 1;"), {}, H200)


def changed(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(sources.ROW_SUMS_LAUNCHES)
    made["launches"][0].update(changes)  # type: ignore[index]
    return made


X_PARTIAL = ["x", "partial"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (changed(kernel="sum_part"), "launches\\[0\\].kernel: the source has no kernel sum_part; declare it as `extern \"C\" __global__`"),
        (changed(kernel="other"), "launches\\[0\\].kernel: the source has no kernel other; there are add_parts, sum_parts"),
        (changed(arguments=X_PARTIAL), "launches\\[0\\].arguments: sum_parts takes 5, and 2 are declared"),
        (changed(arguments=[*X_PARTIAL, {"i64": 1}, {"fp32": 1}, "null"]), "arguments\\[2\\]: sum_parts takes 4 bytes here, and i64 has 8"),
        (changed(arguments=[*X_PARTIAL, "x", {"fp32": 1}, "null"]), "arguments\\[2\\]: sum_parts takes 4 bytes here, and a pointer has 8"),
    ],
)  # fmt: skip
def test_declarations_must_fit_the_source(data: Any, text: str) -> None:
    with pytest.raises(InvalidDeclaration, match=text):
        check_source(sources.ROW_SUMS, Declaration.from_json(data), H200)
    with pytest.raises(InvalidDeclaration, match=text):
        row_sums(**data)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*X_PARTIAL, {"i32": 1}, {"fp32": 1}, "columns"], "arguments\\[4\\]: columns is no tensor; a number has its type"),
        ([*X_PARTIAL, {"i32": 1}, {"fp32": 1}, "nothing"], "arguments\\[4\\]: 'nothing': nothing is not known"),
        ([*X_PARTIAL, {"i32": 1 << 31}, {"fp32": 1}, "null"], "arguments\\[2\\]: '2147483648' must be an integer from -2147483648 to 2147483647"),
        ([*X_PARTIAL, {"u32": -1}, {"fp32": 1}, "null"], "arguments\\[2\\]: '-1' must be an integer from 0 to 4294967295"),
        ([*X_PARTIAL, {"i32": "scale"}, {"fp32": 1}, "null"], "arguments\\[2\\]: 'scale' must be an integer"),
        ([*X_PARTIAL, {"i32": 1}, {"fp32": "1e18 * 1e18"}, "null"], "arguments\\[3\\]: .* beyond 2\\^63"),
        ([*X_PARTIAL, {"i32": 1}, {"fp32": "x"}, "null"], "arguments\\[3\\]: 'x' must be a number, and is a tensor"),
    ],
)  # fmt: skip
def test_arguments_must_have_a_value_for_the_case(arguments: list[Any], text: str) -> None:
    with pytest.raises(InvalidDeclaration, match=text):
        row_sums(**changed(arguments=arguments))


def test_numbers_must_fit_their_type() -> None:
    source = 'extern "C" __global__ void k(float* out, unsigned short a, bool b, char c) { out[0] = a + b + c; }'

    def values(half: float, flag: Any, small: int) -> tuple[Any, ...]:
        declaration = one_launch(arguments=["out", {"fp16": half}, {"i1": flag}, {"i8": small}])
        launch = plan_of(source, declaration).steps[0][0].actions[0]
        assert isinstance(launch, Launch)
        return launch.arguments[1:]

    assert values(1.5, True, -128) == (1.5, 1, -128)
    assert values(-2, "1 < 0", 127) == (-2.0, 0, 127)
    for wrong in ((70000, 1, 1), (1, 2, 1), (1, 1, 128)):
        with pytest.raises(InvalidDeclaration, match=r"arguments\[[123]\]: "):
            values(*wrong)


def test_a_structure_by_value_is_refused() -> None:
    source = 'struct S { float a[5]; }; extern "C" __global__ void k(float* out, S s) { out[0] = s.a[3]; }'

    with pytest.raises(InvalidDeclaration, match="k takes 20 bytes here, and i64 has 8"):
        plan_of(source, one_launch(arguments=["out", {"i64": 1}]))


def test_a_declaration_of_triton_is_no_declaration_of_cuda() -> None:
    launch = {"kernel": "k", "grid": [1], "arguments": {"x": "x"}}

    with pytest.raises(InvalidDeclaration, match=r"launches\[0\] lacks block"):
        plan_of(kernel_of("out[i] = 1;"), Declaration.from_json({"launches": [launch]}))


def test_without_nvrtc_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc._nvrtc.cache_clear()
    nvrtc._compiled.cache_clear()

    with pytest.raises(CudaCompileError, match=r"cuda-kernels.* installs it"):
        compile_source(kernel_of("out[i] = 1;"), {}, H200)


def test_sources_check_without_a_case() -> None:
    check_source(sources.ROW_SUMS, Declaration.from_json(sources.ROW_SUMS_LAUNCHES), H200)
    with pytest.raises(CudaCompileError, match="THREADS"):
        check_source(
            sources.ROW_SUMS,
            Declaration.from_json({**sources.ROW_SUMS_LAUNCHES, "configurations": []}),
            H200,
        )
    with pytest.raises(Refused, match="it prints"):
        check_source(kernel_of('printf("a");'), one_launch(), H200)


def test_parameters_are_read_as_the_compiler_lays_them_out() -> None:
    source = 'extern "C" __global__ void k(char a, short b, char c, double d, float* e, int f, long long g) { *e = a + b + c + d + f + g; }'
    found = Cubin.parse(compile_source(source, {}, H200)).parameters("k")

    assert [one.nbytes for one in found] == [1, 2, 1, 8, 8, 4, 8]
    expected = [0, 2, 4, 8, 16, 24, 32]
    assert [one.offset for one in found] == expected
    assert struct.calcsize("bhbdPiq") == 40


def test_a_source_includes_files_of_its_folders_and_errors_name_their_paths(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    header = tmp_path / "parts" / "scale.cuh"
    header.write_text("__device__ float scaled(float x) { return 2.0f * x; }\n")
    source = '#include "parts/scale.cuh"\n' + (
        'extern "C" __global__ void k(float* x) { x[0] = scaled(x[0]); }\n'
    )

    cubin = compile_source(source, {}, H200, (str(tmp_path),))
    header.write_text("__device__ float scaled(float x) { return y; }\n")
    with pytest.raises(CudaCompileError, match=r"(?m)^parts/scale\.cuh\(1\): error") as error:
        compile_source(source + "\n", {}, H200, (str(tmp_path),))
    with pytest.raises(CudaCompileError, match="cannot open source file"):
        compile_source(source, {}, H200)

    assert cubin.startswith(b"\x7fELF")
    assert str(tmp_path) not in str(error.value)
