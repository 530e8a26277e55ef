"""Files as people have them for KernelBench and for gpu-mode, written for these tests."""

from __future__ import annotations

from pathlib import Path

ACTIVATION = '''"""A swish: x times the sigmoid of x, scaled."""

import torch
import torch.nn as nn

SCALE = 1.5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return SCALE * x * torch.sigmoid(x)


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x) * SCALE


batch_size = 4096
dim = 16384


def get_inputs():
    return [torch.rand(batch_size, dim) * 4 - 2]


def get_init_inputs():
    return []
'''

LINEAR = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """A linear layer, and a bias that is a constant of the inputs."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x, offset):
        return torch.relu(self.linear(x)) + offset


batch = 128
in_features = 4096
out_features = in_features // 2


def get_inputs():
    return [torch.randn(batch, in_features), torch.arange(out_features, dtype=torch.float32)]


def get_init_inputs():
    return [in_features, out_features]
'''

# The weights are packed once. A second packing in a call would be timed.
LINEAR_NEW = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.packed = None

    def forward(self, x, offset):
        if self.packed is None:
            self.packed = self.linear.weight.t().contiguous()
        return torch.addmm(self.linear.bias, x, self.packed).clamp(min=0) + offset
"""

SOFTMAX = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Softmax of the rows, and their sums before it."""

    def forward(self, x):
        return torch.softmax(x, dim=1), x.sum(dim=1)


rows, columns = 32, 128
length: int = 100


def get_inputs():
    return [torch.randn(rows, length).half()]


def get_init_inputs():
    return []
'''

SOFTMAX_NEW = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        exponents = (x.float() - x.float().amax(1, keepdim=True)).exp()
        return [(exponents / exponents.sum(1, keepdim=True)).to(x.dtype), x.float().sum(1).to(x.dtype)]
"""

UTILS = """
def make_match_reference(reference, rtol=1e-05, atol=1e-08):
    def check(data, output):
        return True, ""

    return check
"""

TASK = """# name: {name}

files:
  - {{"name": "submission.py", "source": "@SUBMISSION@"}}
  - {{"name": "task.py", "source": "task.py"}}
  - {{"name": "utils.py", "source": "../utils.py"}}
  - {{"name": "reference.py", "source": "reference.py"}}
  - {{"name": "eval.py", "source": "../eval.py"}}

lang: "py"

description: |
  {doc}

config:
  main: "eval.py"

tests:
{tests}
benchmarks:
{benchmarks}
test_timeout: 180
ranked_timeout: 300
"""

TYPES = """
from typing import TypedDict, TypeVar

import torch

input_t = TypeVar("input_t", bound=tuple[torch.Tensor, torch.Tensor])
output_t = TypeVar("output_t", bound=torch.Tensor)


class TestSpec(TypedDict):
    size: int
    seed: int
"""

ADD_REFERENCE = """
import torch

from task import input_t, output_t
from utils import make_match_reference


def generate_input(size: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    a = torch.randn(size, size, device="cuda", dtype=torch.float16, generator=gen).contiguous()
    b = torch.randn(size, size, device="cuda", dtype=torch.float16, generator=gen).contiguous()
    return a, b


def ref_kernel(data: input_t) -> output_t:
    a, b = data
    return a + b


check_implementation = make_match_reference(ref_kernel, rtol=1e-2, atol=1e-3)
"""

ADD_SUBMISSION = """
import torch

from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    a, b = data
    return torch.add(b, a)
"""

# Memory for results, integers, a constant, a structure of values, and words among the sizes.
SCORE_REFERENCE = """
import torch

from task import input_t, output_t
from utils import make_match_reference


def generate_input(rows: int, kind: str, bias: bool, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.rand((rows, 64), device="cuda", generator=gen) * 2 - 1
    which = torch.randint(0, 64, (rows,), device="cuda", generator=gen)
    weights = {"bias": torch.linspace(0, 1, 64, device="cuda") if bias else None}
    out = torch.zeros((rows,), device="cuda", dtype=torch.float32)
    return x, which, weights, {"kind": kind}, out


def ref_kernel(data: input_t) -> output_t:
    x, which, weights, config, out = data
    scores = x if weights["bias"] is None else x + weights["bias"].to(x.dtype)
    if config["kind"] == "squared":
        scores = scores.square()
    out[...] = scores.gather(1, which.unsqueeze(1)).squeeze(1)
    return out


def check_implementation(data, output):
    return True, ""
"""

SCORE_SUBMISSION = """
import torch


def custom_kernel(data):
    x, which, weights, config, out = data
    scores = torch.take_along_dim(x, which[:, None], dim=1)[:, 0]
    if weights["bias"] is not None:
        scores = scores + weights["bias"][which]
    out.copy_(scores * scores if config["kind"] == "squared" else scores)
    return out
"""


def write_all(folder: Path) -> None:
    """Write all files to a folder."""
    files = {
        "3_Activation.py": ACTIVATION,
        "linear.py": LINEAR,
        "linear_new.py": LINEAR_NEW,
        "softmax.py": SOFTMAX,
        "softmax_new.py": SOFTMAX_NEW,
        "utils.py": UTILS,
        "add_py/task.yml": TASK.format(
            name="add",
            doc="Adds two matrices.",
            tests='  - {"size": 31, "seed": 1}\n  - {"size": 31, "seed": 2}\n',
            benchmarks='  - {"size": 64, "seed": 3}\n',
        ),
        "add_py/task.py": TYPES,
        "add_py/reference.py": ADD_REFERENCE,
        "add_py/submission.py": ADD_SUBMISSION,
        "score_py/task.yml": TASK.format(
            name="score",
            doc="Chooses an element of each row.",
            tests='  - {"rows": 5, "kind": "plain", "bias": false, "seed": 1}\n'
            '  - {"rows": 6, "kind": "squared", "bias": true, "seed": 1}\n',
            benchmarks='  - {"rows": 64, "kind": "squared", "bias": true, "seed": 3}\n',
        ),
        "score_py/task.py": TYPES,
        "score_py/reference.py": SCORE_REFERENCE,
        "mine.py": SCORE_SUBMISSION,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
