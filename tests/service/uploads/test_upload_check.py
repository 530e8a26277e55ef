"""The check of an uploaded source: what it finds, and the line that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.uploads.sources import PLAIN, TRITON
from tests.service.worker.processes import answer_of
from warpcall_bench.runs.messages import CheckRequest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

TRITON_KERNELS = {"language": "triton", "launches": None}
GOOD = "def permute(x, dims):\n    return x\n"


def check(folder: Path, source: str, **changes: Any) -> dict[str, str] | None:
    """The answer of a check; None if there was none."""
    request: CheckRequest = {
        "op": "permute",
        "function": "permute",
        "source": source,
        "inputs": ["x"],
        "optional_inputs": [],
        "params": ["dims"],
        "verified": None,
        "gpu": "",
        "limit_s": 2.0,
    }
    request.update(changes)  # type: ignore[typeddict-item]  # some of its fields
    return answer_of("upload_check", request, folder)


def test_a_good_source_is_described_by_its_docstring(tmp_path: Path) -> None:
    assert check(tmp_path, PLAIN) == {"doc": "Permute in plain torch."}
    assert check(tmp_path, TRITON + "\nprint('hello')\n") == {"doc": ""}


def test_a_function_that_takes_state_needs_a_setup_that_takes_the_same(tmp_path: Path) -> None:
    takes = "def permute(x, dims, state):\n    return x\n"
    setup = "def setup(x, dims):\n    return dims\n"

    assert check(tmp_path, takes + setup) == {"doc": ""}
    # Without a function `setup`, a default is the state, as of any other argument.
    assert check(tmp_path, takes.replace("state", "state=None")) == {"doc": ""}
    # A function `setup` of a file whose function takes no state is a function as any other.
    assert check(tmp_path, GOOD + "def setup():\n    pass\n") == {"doc": ""}


@pytest.mark.parametrize(
    ("setup", "changes", "error"),
    [
        ("", {}, "takes state, which a function setup of the same file must return"),
        ("def setup(x):\n    pass\n", {}, "setup must take the inputs and parameters of permute"),
        ("def setup(x, dims):\n    pass\n", {"verified": TRITON_KERNELS}, "cannot have a setup"),
        ("def setup(x, dims, state):\n    pass\n", {"params": ["dims", "state"]}, "rename"),
    ],
)
def test_a_setup_that_cannot_be_called_is_refused(
    setup: str, changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    answer = check(tmp_path, "def permute(x, dims, state):\n    return x\n" + setup, **changes)

    assert answer is not None
    assert error in answer["error"]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import torch\n\ndef permute(x dims):\n    pass\n", "line 3: SyntaxError: invalid syntax"),
        ("x = 1\n\tpermute = 2\n", "line 2: IndentationError: unexpected indent"),
        ("x = '\x01'\n\x7fELF\x02\x01", "line 2: SyntaxError: invalid non-printable character"),
        ("(" * 1000, "SyntaxError: too many nested parentheses"),
        ("x = " + "-" * 100_000 + "1\n", "it cannot be compiled: "),
        ("# coding: no-such-coding\n", "SyntaxError: "),
        (
            "import torch\nimport nothing_like_this\n",
            (
                "line 2: ModuleNotFoundError: No module named 'nothing_like_this'; GET "
                "/v1/implementations/environment lists the packages that there are"
            ),
        ),
        (
            "def load():\n    raise RuntimeError('at import')\n\nload()\n",
            "line 2: RuntimeError: at import",
        ),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError: Expecting property name"),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("raise KeyboardInterrupt\n", "line 1: KeyboardInterrupt: "),
        (
            "import triton\nDEVICE = triton.runtime.driver.active.get_active_torch_device()\n",
            "line 2: RuntimeError: 0 active drivers",
        ),
        (
            "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd\n",
            "its check ended with ValueError",
        ),
    ],
)
def test_a_source_that_cannot_be_imported_names_the_line(
    source: str, error: str, tmp_path: Path
) -> None:
    answer = check(tmp_path, source)

    assert answer is not None
    assert answer["error"].removeprefix("line 1: ").startswith(error.removeprefix("line 1: "))
    assert answer["field"] == "source"
    assert str(tmp_path) not in answer["error"]


def test_the_author_learns_that_the_check_has_no_gpu(tmp_path: Path) -> None:
    answer = check(tmp_path, "import torch\nX = torch.zeros(1, device='cuda')\n" + GOOD)

    assert answer is not None
    assert answer["error"].startswith("line 2: ")
    assert answer["error"].endswith(
        "; the check has no GPU: use it inside of functions, not when the file is imported"
    )


def test_what_a_source_asks_about_the_gpu_while_it_is_imported_is_answered_for_that_of_jobs(
    tmp_path: Path,
) -> None:
    source = """
import torch
import triton

DRIVER = triton.runtime.driver.active
DEVICE = DRIVER.get_current_device()
assert DRIVER.get_active_torch_device().type == "cuda"
assert DRIVER.get_current_target().arch == 80
assert DRIVER.utils.get_device_properties(DEVICE)["multiprocessor_count"] == 108
assert torch.cuda.is_available()
assert torch.cuda.get_device_capability() == (8, 0)
TABLE = torch.arange(4, device="cuda")
"""
    recorded = {"language": "python", "launches": None}

    assert check(tmp_path, source + GOOD, gpu="sm_80") == {"doc": ""}
    assert check(tmp_path, source + GOOD, gpu="sm_80", verified=recorded) == {"doc": ""}
    without = check(tmp_path, source + GOOD, gpu="")
    assert without is not None
    assert without["error"].startswith("line 5: RuntimeError: 0 active drivers")


def test_what_a_source_makes_on_the_gpu_while_it_is_imported_waits_for_its_job(
    tmp_path: Path,
) -> None:
    source = """
import torch, triton
side = torch.cuda.Stream(priority=-1) if torch.cuda.is_available() else None
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    DONE = torch.cuda.default_stream().record_event()
TIMES = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
GRAPH = torch.cuda.CUDAGraph()
torch.cuda.set_device(0)
BUDGET = torch.cuda.mem_get_info()[0] // 2
TILE = torch.cuda.get_device_properties(0).L2_cache_size // 2
RANDOM = torch.Generator(device="cuda").manual_seed(1)
TABLE = torch.zeros(4, pin_memory=True).pin_memory().to("cuda", non_blocking=True)
LAYER = torch.nn.Linear(4, 4).cuda()
assert triton.runtime.driver.active.get_device_interface().current_device() == 0
"""

    assert check(tmp_path, source + GOOD, gpu="sm_90") == {"doc": ""}


@pytest.mark.parametrize(
    "source",
    [
        "import time\n\nwhile True:\n    pass\n",
        "import time\n\ntime.sleep(1000)\n",
        "x = 0\n\nwhile True:\n    try:\n        x += 1\n    except BaseException:\n        pass\n",
    ],
)
def test_an_import_without_end_is_ended_and_names_the_line(source: str, tmp_path: Path) -> None:
    answer = check(tmp_path, source, limit_s=1.0)

    assert answer is not None
    assert answer["error"].split(": ")[0] in ("line 3", "line 4", "line 5")
    assert answer["error"].endswith(": the import did not end within 1 s")


def test_code_that_keeps_the_interpreter_for_itself_is_ended_too(tmp_path: Path) -> None:
    endless = "import itertools\nsum(itertools.repeat(0))\n"

    assert check(tmp_path, endless, limit_s=1.0) is None


def test_a_source_that_ends_the_process_gives_no_answer(tmp_path: Path) -> None:
    assert check(tmp_path, "import os\nos._exit(0)\n") is None


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (
            "import math\n\ndef load():\n    pass\n\ndef main():\n    pass\n",
            "it has no function permute, its functions are: load, main",
        ),
        ("", "it has no function permute, its functions are: none"),
        ("permute = 3\n", "permute must be a function, it is a value of type int"),
        ("class permute:\n    pass\n", "permute must be a function, it is a class"),
        (
            "import triton\n@triton.jit\ndef permute(x, dims):\n    pass\n",
            "permute is a Triton kernel: name the function that launches it",
        ),
        (
            "\ndef permute(x):\n    pass\n",
            (
                "line 2: permute must take the inputs and parameters of permute by name: x, dims; it "
                "takes (x): got an unexpected keyword argument 'dims'"
            ),
        ),
        (
            "def permute(x, dims, scale):\n    pass\n",
            (
                "line 1: permute must take the inputs and parameters of permute by name: x, dims; it "
                "takes (x, dims, scale): missing a required argument: 'scale'"
            ),
        ),
        (
            "def permute(x, dims, /):\n    pass\n",
            (
                "line 1: permute must take the inputs and parameters of permute by name: x, dims; it "
                "takes (x only by position, dims only by position): "
            ),
        ),
    ],
)
def test_a_function_that_does_not_fit_its_op_is_refused(
    source: str, error: str, tmp_path: Path
) -> None:
    answer = check(tmp_path, source)

    assert answer is not None
    assert answer["error"].startswith(error)
    assert answer["field"] == "function"


@pytest.mark.parametrize(
    "source",
    [
        "def permute(**anything):\n    pass\n",
        "def permute(x, dims, scale=1):\n    pass\n",
        "permute = lambda x, dims: x\n",
        "import functools\ndef f(x, dims, n):\n    pass\npermute = functools.partial(f, n=3)\n",
        "permute = dict(x=1).update\n",
    ],
)
def test_any_callable_that_takes_what_the_op_has_will_do(source: str, tmp_path: Path) -> None:
    answer = check(tmp_path, source)

    assert answer is not None
    assert "error" not in answer


def test_optional_inputs_may_be_left_out_but_not_required(tmp_path: Path) -> None:
    names = {"inputs": ["x"], "optional_inputs": ["bias"], "params": ["dims"]}

    without = check(tmp_path, GOOD, **names)
    required = check(tmp_path, "def permute(x, dims, bias):\n    pass\n", **names)

    assert without == {"doc": ""}
    assert required is not None
    assert "by name: x, dims, and may take bias; it takes (x, dims, bias)" in required["error"]


LAUNCHES = {
    "launches": [
        {"kernel": "_kernel", "grid": ["x.shape[0]"], "arguments": {"x_ptr": "x", "BLOCK": 64}}
    ]
}
DECORATED = TRITON + "\npermute.__warpcall_launches__ = {}\n"


def test_a_declaration_of_launches_is_parsed(tmp_path: Path) -> None:
    recorded = {"language": "python", "launches": None}
    declared = {"language": "python", "launches": LAUNCHES}

    for source, verified in (
        (TRITON, recorded),
        (TRITON, declared),
        (DECORATED.format(LAUNCHES), recorded),
        (DECORATED.format(5), None),
    ):
        assert check(tmp_path, source, verified=verified) == {"doc": ""}


@pytest.mark.parametrize(
    ("source", "launches", "error", "field"),
    [
        (TRITON, {"launches": []}, "launches", "launches"),
        (DECORATED.format({"launches": []}), None, "launches", "source"),
        (DECORATED.format({**LAUNCHES, "grids": []}), None, "grids", "source"),
        (
            TRITON,
            {"launches": [{"kernel": "k", "grid": [1], "block": [32], "arguments": ["x"]}]},
            "must be that of kernels in Triton, it is that of kernels in CUDA C++",
            "launches",
        ),
    ],
)
def test_a_wrong_declaration_of_launches_is_refused(
    source: str, launches: object, error: str, field: str, tmp_path: Path
) -> None:
    answer = check(tmp_path, source, verified={"language": "python", "launches": launches})

    assert answer is not None
    assert answer["error"].startswith("the declaration of its launches")
    assert error in answer["error"]
    assert answer["field"] == field


def test_a_refusal_of_cuda_as_python_says_what_to_do(tmp_path: Path) -> None:
    source = "#include <cuda_fp16.h>\n\n__global__ void permute(float* x) { x[0] = 1; }\n"

    answer = check(tmp_path, source)

    assert answer is not None
    assert answer["field"] == "source"
    assert answer["error"].startswith("it is no Python: it looks like CUDA C++")
    assert "--mine FILE.cu" in answer["error"]
    assert '"language": "cuda"' in answer["error"]
