"""What is uploaded of a notebook's cell: the function and what it uses, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.client.first_sight.test_notebooks import run
from tests.client.implementations.scripted_lab import LabServer
from warpcall._jobs.cells import needed_part
from warpcall.errors import InvalidInput

CELL = """\
from __future__ import annotations
import math, json
import numpy as np
from warpcall import Client

# How wide a tile is.
TILE = 64
TABLE = [1]
TABLE.append(TILE)
TABLE[0] = 2
OTHER = [3]
OTHER.append(4)

@staticmethod
def helper(x):
    unused = 1
    return x * TABLE[0]

class Unused: ...

def permute(x, dims):
    return np.ascontiguousarray(helper(x).transpose(dims))

with Client() as gpu:
    added = gpu.implementations.add("permute", permute)
print(permute(np.ones((2, 2)), (1, 0)))
added
"""
NEEDED = """\
from __future__ import annotations
import numpy as np
TILE = 64
TABLE = [1]
TABLE.append(TILE)
TABLE[0] = 2
@staticmethod
def helper(x):
    unused = 1
    return x * TABLE[0]
def permute(x, dims):
    return np.ascontiguousarray(helper(x).transpose(dims))
"""


def test_what_a_function_uses_is_taken_and_the_upload_itself_is_not() -> None:
    assert needed_part(CELL, "permute", {}) == NEEDED


def test_imports_of_other_cells_are_added_behind_those_from_the_future() -> None:
    cell = "from __future__ import annotations\ndef f(x: Path):\n    return np.sqrt(floor(m.e)) + len(x)\n"
    names = {"np": np, "m": math, "floor": math.floor, "Path": Path, "f": None, "x": 3}

    part = needed_part(cell, "f", names)

    assert part.splitlines()[:5] == [
        "from __future__ import annotations",
        "from pathlib import Path",
        "from math import floor",
        "import math as m",
        "import numpy as np",
    ]
    space: dict[str, Any] = {}
    exec(part, space)  # noqa: S102  # it is above
    assert space["f"]([1, 2]) == math.sqrt(2) + 2


def test_a_module_within_a_package_is_imported_by_the_name_that_it_has() -> None:
    import os.path as paths

    part = needed_part(
        "def f():\n    return paths, os\n", "f", {"paths": paths, "os": __import__("os")}
    )

    assert part.startswith("import os\nimport posixpath as paths\n")


def test_what_another_cell_defines_is_named() -> None:
    with pytest.raises(InvalidInput, match="f uses TILE, which another cell defines") as e:
        needed_part("def f(x):\n    return x * TILE\n", "f", {"TILE": 64})

    assert e.value.field == "source"


@pytest.mark.parametrize("cell", ["def f(:", "%%time\ndef f(): ...", "from somewhere import f2\n"])
def test_a_cell_that_cannot_be_taken_apart_is_taken_whole(cell: str) -> None:
    assert needed_part(cell, "f", {}) == cell


def test_what_is_imported_by_a_star_is_kept() -> None:
    cell = "from math import *\ndef f(): return pi\nf()\n"

    assert needed_part(cell, "f", {"pi": math.pi}) == "from math import *\ndef f(): return pi\n"


def test_a_problem_of_a_notebook_is_taken_with_its_reference() -> None:
    cell = (
        "def f(x): return x\n"
        "PROBLEM = Problem(reference=f, sizes=(Size('n'),))\n"
        "gpu.problems.add(f)\n"
    )
    names = {"Problem": Path, "Size": Path, "gpu": object()}

    part = needed_part(cell, "PROBLEM", names)

    assert part.splitlines() == [
        "from pathlib import Path as Problem",
        "from pathlib import Path as Size",
        *cell.splitlines()[:2],
    ]


@pytest.fixture
def lab() -> Iterator[LabServer]:
    with LabServer() as server:
        yield server


def test_a_notebook_whose_cell_defines_and_adds_a_kernel_uploads_the_function(
    lab: LabServer,
) -> None:
    run(
        "import numpy as np\nfrom warpcall import Client",
        f"""
def permute(x, dims):
    return np.transpose(x, dims)

with Client({lab.url!r}) as gpu:
    gpu.implementations.add("permute", permute)
""",
    )

    assert lab.seen.params["source"] == (
        "import numpy as np\ndef permute(x, dims):\n    return np.transpose(x, dims)\n"
    )
    assert lab.seen.params["function"] == "permute"
