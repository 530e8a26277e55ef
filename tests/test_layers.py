"""What the tests over the application in process may use, and how much the others may start."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
APP = ROOT / "app"
# With these a test starts a process, opens a port or drives a browser. It takes seconds then, and
# belongs outside of tests/app.
NOT_IN_PROCESS = (
    *("subprocess", "multiprocessing", "psutil", "playwright"),
    *("demo.server", "tests.servers", "tests.forks", "tests.template", "tests.pages.browsers"),
)
MAX_APPS = 60  # calls of `running_app`, which takes a second of CPU
# Calls that start a server, which takes one to four seconds of CPU. A new test that needs no port,
# process or log of a server belongs in tests/app: lower this number when tests move there.
# There are 181, and some room for changes that are made side by side.
MAX_SERVERS = 200


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, and the names that it imports from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(folder: Path, name: str) -> int:
    """How often the files of a folder call functions whose name matches."""
    call = re.compile(rf"(?<!def )\b{name}\(")
    return sum(len(call.findall(path.read_text())) for path in folder.rglob("*.py"))


def test_tests_of_the_application_start_no_process_and_open_no_port() -> None:
    wrong = [
        (str(path.relative_to(ROOT)), name)
        for path in sorted(APP.rglob("*.py"))
        for name in imported(path)
        if any(name == one or name.startswith(f"{one}.") for one in NOT_IN_PROCESS)
    ]

    assert wrong == []


def test_few_applications_are_started_and_no_more_servers_than_before() -> None:
    assert 10 < calls(APP, "running_app") <= MAX_APPS
    assert 100 < calls(ROOT, "running_(server|lab)") <= MAX_SERVERS
