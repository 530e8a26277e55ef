"""The GitHub Action: its steps, run as GitHub runs them, against a real server and a GitHub of the test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers import Server, running_server
from tests.service.job_requests import BRIEF

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, *STEPS = ACTION["runs"]["steps"]
# Both take so long that the server's own clock confirms their times on a CPU. They sleep, which
# leaves the CPU to other tests.
QUICK = """
import time

def permute(x, dims):
    time.sleep(0.005)
    return x.permute(dims).contiguous()
"""
SLOW = QUICK.replace("0.005", "0.020")
CASES = "--shape 256x256\n--dtype float32 --dims 1,0"


@dataclass
class GitHub:
    """The comments of one pull request, and the requests that were made."""

    url: str
    comments: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def github() -> Iterator[GitHub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = int(re.search(r"&page=(\d+)", self.path)[1])  # type: ignore[index]
            self._send(found.comments[100 * (page - 1) : 100 * page])

        def do_POST(self) -> None:
            found.comments.append({"id": len(found.comments), "body": self._body()})
            self._send(found.comments[-1], 201)

        def do_PATCH(self) -> None:
            comment = found.comments[int(self.path.rpartition("/")[2])]
            comment["body"] = self._body()
            self._send(comment)

        def _body(self) -> str:
            text = self.rfile.read(int(self.headers["content-length"]))
            return str(json.loads(text)["body"])

        def _send(self, answer: Any, status: int = 200) -> None:
            assert self.headers["authorization"] == "Bearer a-token"
            found.asked.append(f"{self.command} {self.path}")
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = GitHub(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = str(tmp_path_factory.mktemp("data"))
    with running_server(
        {"WARPCALL_DATA_DIR": folder, "WARPCALL_UPLOADS": "trusted", **BRIEF}
    ) as one:
        yield one


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose last commit makes permute slower, and adds another file."""
    folder = tmp_path / "repository"
    (folder / "kernels").mkdir(parents=True)
    for command, source in ((["init", "-q"], QUICK), ([], SLOW)):
        (folder / "kernels/permute.py").write_text(source)
        if not command:
            (folder / "kernels/new.py").write_text(QUICK)
        for words in (command, ["add", "."], ["commit", "-qm", "a commit"]):
            who = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]
            if words:
                subprocess.run(["git", *who, *words], cwd=folder, check=True, timeout=30)
    return folder


@pytest.fixture(scope="module")
def installed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the action's first step installs, which takes a second of CPU. The others find it in each test."""
    temporary = tmp_path_factory.mktemp("installed")
    variables = {"URL": server.url, "RUNNER_TEMP": str(temporary)}
    done = run_step(INSTALL, variables, temporary)
    assert (done.returncode, done.stderr) == (0, "")
    return temporary / "warpcall"


def run_step(
    step: Mapping[str, Any], variables: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run the script of a step as GitHub does."""
    known = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PIP_NO_DEPS": "1",  # the Python of the tests has them, and needs no network
        "PYTHONPATH": "",
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={**known, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """A text of the action with the values of its expressions."""
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda match: values[match[1]], text)


@dataclass(frozen=True)
class Runner:
    """A runner of GitHub's with the client installed, and a repository."""

    server: Server
    github: GitHub
    repository: Path
    temporary: Path

    def run(self, **given: str) -> tuple[int, Mapping[str, str], str]:
        """Run the other steps until one fails: the exit status, the outputs, and what was printed."""
        outputs = self.temporary / "outputs"
        outputs.write_text("")
        values = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()}
        values |= {"url": self.server.url, "base": "HEAD~1", "token": "a-token", "cases": CASES}
        values |= given
        known = {
            "RUNNER_TEMP": str(self.temporary),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_API_URL": self.github.url,
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_REPOSITORY": "lab/kernels",
        }
        printed = ""
        for step in STEPS:
            found = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
            replaced = {f"inputs.{name}": value for name, value in values.items()}
            replaced |= {f"steps.check.outputs.{name}": value for name, value in found.items()}
            replaced["github.event.pull_request.number"] = "7"
            variables = {name: filled_in(text, replaced) for name, text in step["env"].items()}
            done = run_step(step, {**known, **variables}, self.repository)
            printed += done.stdout + done.stderr
            if done.returncode:
                return done.returncode, found, printed
        return 0, found, printed


@pytest.fixture
def runner(server: Server, github: GitHub, repository: Path, installed: Path) -> Runner:
    temporary = repository.parent / "temporary"
    temporary.mkdir()
    (temporary / "warpcall").symlink_to(installed)
    return Runner(server, github, repository, temporary)


def test_no_text_of_a_user_becomes_part_of_a_script() -> None:
    assert [step["run"] for step in (INSTALL, *STEPS) if "${{" in step["run"]] == []
    assert INSTALL["env"] == {"URL": "${{ inputs.url }}"}


def test_a_slower_pull_request_fails_and_its_comment_is_updated(
    runner: Runner, github: GitHub, repository: Path
) -> None:
    github.comments += [{"id": n, "body": "of a person"} for n in range(100)]

    first = runner.run(op="permute", file="kernels/permute.py")
    written = github.comments[-1]["body"]
    (repository / "kernels/permute.py").write_text(f"# As before.\n{QUICK}")
    second = runner.run(op="permute", file="kernels/permute.py:permute", base="HEAD")

    assert (first[0], first[1]) == (1, {"outcome": "slower"}), first[2]
    assert written.startswith("<!-- warpcall regression: permute kernels/permute.py -->\n### Warp")
    assert "permute x=F32[256,256] dims=1,0" in written
    assert (second[0], second[1]) == (0, {"outcome": "passed"}), second[2]
    assert len(github.comments) == 102  # the second run names another function
    again = runner.run(op="permute", file="kernels/permute.py", base="HEAD")
    assert again[0] == 0
    assert len(github.comments) == 102
    assert "permute passed" in github.comments[100]["body"]
    assert [one.partition("?")[0] for one in github.asked].count(
        "PATCH /repos/lab/kernels/issues/comments/100"
    ) == 1


def test_a_new_file_has_nothing_to_be_compared_with(
    runner: Runner, github: GitHub, repository: Path
) -> None:
    status, found, _ = runner.run(op="permute", file="kernels/new.py")

    assert (status, found) == (0, {"outcome": "passed"})
    assert "is not in HEAD~1, so there is nothing to compare with." in github.comments[0]["body"]


def test_what_cannot_be_measured_fails_with_the_reason(
    runner: Runner, github: GitHub, repository: Path
) -> None:
    status, _, printed = runner.run(op="permut", file="kernels/permute.py")

    assert status == 1
    assert "there is no op permut" in printed.replace("'", "")
    assert github.comments == []


def test_a_check_says_nothing_about_the_next_one_of_the_same_runner(
    runner: Runner, github: GitHub, repository: Path
) -> None:
    measured = {"op": "permute", "file": "kernels/permute.py", "base": "HEAD"}
    first = runner.run(**measured)
    second = runner.run(**{**measured, "op": "permut"})

    assert (first[0], first[1]) == (0, {"outcome": "passed"}), first[2]
    assert (second[0], second[1]) == (1, {}), second[2]
    assert len(github.comments) == 1


@pytest.mark.parametrize(
    ("outcome", "undecided", "status"),
    [
        ("passed", "fail", 0),
        ("undecided", "pass", 0),
        ("undecided", "fail", 1),
        ("slower", "pass", 1),
        ("failed", "pass", 1),
        ("", "pass", 1),
    ],
)
def test_the_last_step_decides(outcome: str, undecided: str, status: int) -> None:
    script = ACTION["runs"]["steps"][-1]["run"]
    environment = {"OUTCOME": outcome, "UNDECIDED": undecided}

    done = subprocess.run(["bash", "-ec", script], env=environment, timeout=30, check=False)

    assert done.returncode == status
