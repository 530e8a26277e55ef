"""One new file in `warpcall_kernels/` is an op: listed, served, documented, callable and tested.

The files are the one that docs/add-a-kernel.md tells readers to write, and the one that docs/problems.md
tells them to copy for a problem. One package, one server and one run of pytest have both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import warpcall_kernels
from demo.server import Server, running_server
from tests.servers import SMALL
from warpcall import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the kernels are compiled for a GPU

ROOT = Path(__file__).parents[2]


def file_of(page: str) -> str:
    """The file that a page tells readers to make."""
    text = (ROOT / f"docs/{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    files = [str(block) for block in blocks if "OP = Op(" in block]
    copied = re.findall(r"^cp (examples/\S+) kernels/warpcall_kernels/", text, re.MULTILINE)
    files += [(ROOT / file).read_text() for file in copied]
    (found,) = files
    return found


def name_in(source: str) -> str:
    found = re.search(r'Op\(\s*name="([a-z-]+)"', source)
    assert found
    return found[1]


NEW = {name_in(file): file for file in map(file_of, ("add-a-kernel", "problems"))}
each_new_op = pytest.mark.parametrize("name", NEW)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as it is, and the new files; nothing else is touched."""
    folder = tmp_path_factory.mktemp("sources")
    package = folder / "warpcall_kernels"
    shutil.copytree(Path(warpcall_kernels.__file__).parent, package)
    for name, file in NEW.items():
        (package / f"{name.replace('-', '_')}.py").write_text(file)
    return folder


@pytest.fixture(scope="module")
def server(sources: Path) -> Iterator[Server]:
    with running_server({**SMALL, "PYTHONPATH": str(sources)}) as running:
        yield running


@each_new_op
def test_it_is_listed(server: Server, name: str) -> None:
    listed = json.loads(server.get("/v1/kernels")[1])["kernels"]

    assert name in [op["name"] for op in listed]
    assert set(warpcall_kernels.ops()) < {op["name"] for op in listed}


@each_new_op
def test_it_is_documented(server: Server, name: str) -> None:
    described = json.loads(server.get("/openapi.json")[1])["paths"][f"/v1/kernels/{name}"]["post"]
    declared = json.loads(server.get(f"/v1/kernels/{name}")[1])

    assert described["summary"] == declared["summary"]
    assert declared["equivalent"] in described["description"]


@each_new_op
def test_it_is_served_and_callable(server: Server, name: str) -> None:
    x = np.linspace(-2, 2, 9, dtype=np.float32)

    with Client(server.url) as client:
        declared = client.kernel(name)
        answer = client.run(name, **{declared["inputs"][0]["name"]: x})

    assert answer.shape == x.shape
    assert not np.array_equal(answer, x)


USED = f"""
from tools.generate_sdk import render
from warpcall_kernels import measuring, ops

print(*render(ops()).values())
brief = measuring.Precision("brief", 0.2, warm_seconds=0.1)
for name in {[*NEW]}:
    case = measuring.make_case(name, {{"shape": [31, 33], "dtype": "BF16"}})
    result = measuring.measure(case, ["torch", "copy"], "cpu", brief)
    print(case.key, [i.status for i in result.implementations])
"""
BETWEEN = "the tests have passed\n"
TESTED = f"""
import pytest, sys

if status := pytest.main(sys.argv[1:]):  # first: it chooses the interpreter before Triton is imported
    sys.exit(status)
print({BETWEEN!r}, end="")
"""


@pytest.fixture(scope="module")
def said(sources: Path) -> dict[str, str]:
    """What the suite of all ops says of these, and what a program does that uses them, in one process.

    Tests of all ops find these by `ops`. To import the other files would take ten seconds of CPU, and to
    compile the kernels for three other kinds of GPU as well another ten.
    """
    files = sorted(
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests/kernels").rglob("test_*.py")
        if re.search(r"\bops\b", file.read_text())
    )
    wanted = f"({' or '.join(NEW)}) and not test_other_gpus"
    command = ["-v", "-p", "no:cacheprovider", "-p", "no:xdist", *files, "-k", wanted]
    done = subprocess.run(
        [sys.executable, "-c", f"{TESTED}{USED}", *command],
        env={**os.environ, "PYTHONPATH": str(sources)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested, _, used = done.stdout.partition(BETWEEN)
    return {"used": used, "tested": tested}


def test_they_become_methods_of_the_sdk_and_are_measured_from_a_shape_and_a_dtype(
    said: dict[str, str],
) -> None:
    for name in NEW:
        assert f"def {name.replace('-', '_')}(" in said["used"]
    assert said["used"].endswith("".join(f"{name} x=BF16[31,33] ['ok', 'ok']\n" for name in NEW))


def test_they_are_tested_by_the_suite_of_all_ops(said: dict[str, str]) -> None:
    for name in NEW:
        assert len(re.findall(rf"\[.*{name}.* PASSED", said["tested"])) > 20
    assert re.search(r"test_every_case_compiles\[.* PASSED", said["tested"])
    assert "FAILED" not in said["tested"]
