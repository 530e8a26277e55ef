"""What README and docs show is true: commands run as written, outputs are these, links lead somewhere.

Each page is a session in a new folder that has the repository's files: its ```sh and ```python blocks
run in order against a real server, and an ```output block is what the one before it prints, with
`...` for what differs from run to run. Of `make` only the existence of its target is checked, because
it sets up, or serves without end; `.ci/run` runs those.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.server import Server, running_server
from warpcall.errors import Problem
from warpcall_service import problems
from warpcall_service.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
URL = "http://127.0.0.1:8000"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Example:
    """A block of a page, and what it must print, if the page says so."""

    language: str
    text: str
    output: str | None


def examples(page: Path) -> list[Example]:
    blocks = BLOCK.findall(page.read_text())
    following = [*blocks, ("", "")][1:]
    return [
        Example(language, text, after[1] if after[0] == "output" else None)
        for (language, text), after in zip(blocks, following, strict=True)
        if language in ("sh", "python") and "OP = Op(" not in text  # that is a file: test_new_op.py
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server({"WARPCALL_ARENA_BYTES": "256MiB"}) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place to write in, with the repository's files where the pages expect them."""
    for file in ROOT.iterdir():
        if file.name != ".git":
            (tmp_path / file.name).symlink_to(file)
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=lambda page: page.name)
def test_the_examples_of_a_page_run_as_written(page: Path, folder: Path, server: Server) -> None:
    for example in examples(page):
        text = example.text.replace(URL, server.url)
        if example.language == "python":
            command = [sys.executable, "-c", text]
        else:
            text = re.sub(r"^make\b", "make --dry-run --always-make", text, flags=re.MULTILINE)
            command = ["bash", "-euo", "pipefail", "-c", text]

        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "WARPCALL_URL": server.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        assert not done.stderr, done.stderr
        if example.output is not None:
            assert matches(done.stdout, example.output), f"{text}\nprints\n{done.stdout}"


def matches(printed: str, shown: str) -> bool:
    """Whether these are the same lines, but for trailing spaces and what `...` stands for."""
    lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    pattern = re.escape(shown.strip()).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, lines) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = BLOCK.sub("", page.read_text())
    local = [link for link in LINK.findall(prose) if "://" not in link]

    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_readme_lists_every_op_with_what_it_is_equivalent_to(server: Server) -> None:
    ops = json.loads(server.get("/v1/kernels")[1])["kernels"]
    rows = re.findall(
        r"^\| `([a-z-]+)` \| `(.*)` \|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )

    assert dict(rows) == {op["name"]: op["equivalent"] for op in ops}


def test_the_settings_are_all_documented_with_their_defaults() -> None:
    section = (ROOT / "docs/deploy.md").read_text().partition("## Settings")[2].partition("## ")[0]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| `(.*?)` \|", section, re.MULTILINE))

    assert rows == {
        name: str(field.default).lower() for name, field in Settings.model_fields.items()
    }


def test_the_metrics_are_all_documented(server: Server) -> None:
    families = re.findall(
        r"^# TYPE (\w+) (?:counter|gauge|histogram)", server.get("/metrics")[1], re.MULTILINE
    )
    text = (ROOT / "docs/deploy.md").read_text()

    missing = [name for name in families if name not in text and not name.endswith("_created")]

    assert missing == []


def test_the_problems_are_all_documented() -> None:

    text = (ROOT / "docs/http-api.md").read_text()
    kinds = [k for k in Problem.__subclasses__() if k.code not in ("unauthorized", "forbidden")]

    assert problems.Internal in kinds
    for kind in kinds:
        assert f"| `{kind.code}` | {kind.status} |" in text
