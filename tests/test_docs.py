"""What README and docs show is true: commands run as written, outputs are these, links lead
somewhere.

Each page is a session in a new folder that has the repository's files: its ```sh and ```python
blocks run in order against a real server, and an ```output block is what the one before it prints,
with `...` for what differs from run to run. Of `make` only the existence of its target is checked,
because it sets up, or serves without end; `.ci/run` runs those. Blocks without a language are
drawings. Tables are compared with the code that they tell of.

`warpcall`, `warpcall-server` and Python are new processes for README, and forks of the template (tests/commands.py)
for the pages in docs, where their imports would be half of the time.
"""

from __future__ import annotations

import ast
import html
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import warpcall
from bench import report as service_report
from bench.kernels import grid_page
from bench.kernels.page import families, markdown
from tests import forks
from tests.commands import COMMANDS, forked_commands
from tests.oip import environments
from tests.servers import Server, running_server
from tests.service.job_requests import BRIEF
from warpcall import wire
from warpcall.dtypes import ITEMSIZE
from warpcall.errors import Problem
from warpcall_bench import json_body
from warpcall_bench.jobs import routes as job_routes
from warpcall_bench.jobs import service as job_service
from warpcall_bench.jobs.models import MAX_BODY_BYTES, MAX_COMMAND_BYTES
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import implementations
from warpcall_service.calls import programs
from warpcall_service.formats import (
    json_reader,
    media_types,
    multipart,
    npy,
    params,
    responses,
)
from warpcall_service.http import connection, decompress, parsing, problems
from warpcall_service.http import server as http_server
from warpcall_service.lanes.plan import MAX_MESSAGE_BYTES
from warpcall_service.oip import shared_memory

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
ADDRESS = "127.0.0.1:8000"
GRPC_ADDRESS = "127.0.0.1:8001"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]*)#?([^)]*)\)")
FILE = re.compile(r"`([\w./-]+\.(?:py|md|toml|txt|json))`")
CONSTANT = re.compile(r"`([A-Z_]+)(?:\[(\d+)\])?` = (\([^)]*\)|\d+ to \d+|[^\s|,]+)")
TOPS = ("client", "kernels", "service", "tests", "docs", "bench", "demo", "docker", "examples")
# The reader is asked to write the first one, and tasks of gpu-mode have the others.
EXAMPLE_FILES = {"kernels/warpcall_kernels/leaky_relu.py", "reference.py", "submission.py"}


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
    with running_server(
        {
            "WARPCALL_ARENA_BYTES": "256MiB",
            "WARPCALL_UPLOADS": "trusted",
            "WARPCALL_USER_MAX_SHARED_BYTES": "256MiB",
            "WARPCALL_GRPC_PORT": "0",
            **BRIEF,
        }
    ) as running:
        yield running


@pytest.fixture
def no_uploads_left(server: Server) -> Iterator[None]:
    """Delete at the end what a page uploaded, so that lists of other pages do not show it."""
    yield
    with warpcall.Client(server.url) as gpu:
        for one in gpu.implementations.list().implementations:
            if one.user is not None:
                gpu.implementations.remove(one.name)


def path_without_environment() -> str:
    """PATH as in a new shell: a reader has not activated the environment of `make setup`."""
    own = Path(sys.executable).parent
    return os.pathsep.join(
        one for one in os.environ["PATH"].split(os.pathsep) if Path(one).resolve() != own.resolve()
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place to write in, with the repository's files where the pages expect them."""
    for file in ROOT.iterdir():
        if file.name != ".git":
            (tmp_path / file.name).symlink_to(file)
    return tmp_path


@pytest.fixture
def forked(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """That place, as the working folder, with an environment whose commands are forks."""
    monkeypatch.chdir(folder)  # which forks have
    environment = folder / ".venv"
    environment.unlink()
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").symlink_to(Path(sys.prefix) / "pyvenv.cfg")
    for file in (Path(sys.prefix) / "bin").iterdir():
        if file.name not in COMMANDS:
            (environment / "bin" / file.name).symlink_to(file)
    commands = tmp_path_factory.mktemp("commands")
    for name in COMMANDS:
        (environment / "bin" / name).symlink_to(commands / name)
    with forked_commands(commands):
        yield folder


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("no_uploads_left")
@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=lambda page: page.name)
def test_the_examples_of_a_page_run_as_written(
    page: Path, server: Server, request: pytest.FixtureRequest
) -> None:
    are_forks = page.parent != ROOT
    folder: Path = request.getfixturevalue("forked" if are_forks else "folder")
    for example in examples(page):
        text = example.text.replace(ADDRESS, f"127.0.0.1:{server.port}")
        text = text.replace(GRPC_ADDRESS, server.grpc_address)
        environment = {
            **os.environ,
            "PATH": path_without_environment(),
            "WARPCALL_URL": server.url,
            "WARPCALL_DATA_DIR": str(folder / "data"),  # not the server's: it asks for no key
        }
        if example.language == "python":
            theirs = environments.python_of("triton") if "tritonclient" in text else None
            command = [str(theirs or sys.executable), "-c", text]
        else:
            text = re.sub(r"^make\b", "make --dry-run --always-make", text, flags=re.MULTILINE)
            command = ["bash", "-euo", "pipefail", "-c", text]

        if are_forks and command[0] == sys.executable:
            done = forks.run(command, environment, timeout_s=120)
        else:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        assert not done.stderr, done.stderr
        if example.output is not None:
            assert matches(done.stdout, example.output), f"{text}\nprints\n{done.stdout}"


def test_the_commands_of_the_page_to_get_started_run_as_written(
    server: Server,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page's commands are forks, as those of the pages in docs; what `pip` installs is read by nothing."""
    monkeypatch.chdir(tmp_path)  # which forks have
    own = tmp_path_factory.mktemp("commands")
    page = server.get("/start")[1]
    commands = [
        html.unescape(one) for one in re.findall(r"<pre><code>(.*?)</code>", page, re.DOTALL)
    ]
    environment = {
        **os.environ,
        "PATH": f"{own}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path),
    }

    with forked_commands(own):
        for command in commands:
            text = command.replace("pip install", "pip install -qq --no-deps --target installed")
            program = [sys.executable, "-c"] if text.startswith("import") else ["bash", "-euc"]
            done = forks.run([*program, text], environment, timeout_s=120)

            assert (done.returncode, done.stderr) == (0, ""), f"{text}\n{done.stdout}{done.stderr}"

    assert len(commands) == 7
    assert (tmp_path / "turned.npy").exists()


def test_the_problem_on_its_page_is_the_one_of_the_examples() -> None:
    shown = [one.text for one in examples(ROOT / "docs/problems.md") if "PROBLEM =" in one.text]

    assert shown == [(ROOT / "examples/row_norm.py").read_text()]


def matches(printed: str, shown: str) -> bool:
    """Whether these are the same lines, but for trailing spaces and what `...` stands for."""
    lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    pattern = re.escape(shown.strip()).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, lines) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_block_that_would_not_be_run(page: Path) -> None:
    languages = [language for language, _ in BLOCK.findall(page.read_text())]

    assert set(languages) <= {"sh", "python", "output", ""}
    assert page.read_text().count("```") == 2 * len(languages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    local = [link for link in LINK.findall(prose(page)) if "://" not in link[0]]

    lost = [
        (file, heading)
        for file, heading in local
        if not (target := page.parent / file if file else page).exists()
        or (heading and heading not in headings(target))
    ]

    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    tracked = [str(p.relative_to(ROOT)) for top in TOPS for p in (ROOT / top).rglob("*.*")]
    tracked += [p.name for p in ROOT.iterdir()]

    named = set(FILE.findall(prose(page))) - EXAMPLE_FILES
    lost = [n for n in named if not any(f == n or f.endswith("/" + n) for f in tracked)]

    assert [n for n in lost if not n.startswith("/")] == []  # the others are routes


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_readme_lists_every_op_with_what_it_is_equivalent_to(server: Server) -> None:
    ops = catalog(server)
    rows = re.findall(
        r"^\| `([a-z-]+)` \| `(.*)` \|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )

    assert dict(rows) == {op["name"]: op["equivalent"] for op in ops}


def test_the_settings_are_all_documented_with_their_defaults_and_meanings() -> None:
    section = page_of("settings").partition("## All settings")[2].partition("## ")[0]
    rows = re.findall(r"^\| `([a-z_]+)` \| `(.*?)` \| (.*) \|$", section, re.MULTILINE)

    assert rows == [
        (name, str(field.default).lower(), field.description)
        for name, field in BenchSettings.model_fields.items()
    ]


def test_the_metrics_are_all_documented(server: Server) -> None:
    families = re.findall(
        r"^# TYPE (\w+) (?:counter|gauge|histogram)", server.get("/metrics")[1], re.MULTILINE
    )
    text = page_of("metrics")

    missing = [name for name in families if name not in text and not name.endswith("_created")]

    assert missing == []


def test_the_way_of_a_call_names_functions_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \| `(.+?)` \| `(.+?)` \|", page_of("serving"), re.MULTILINE)

    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    assert 8 <= len(rows) <= 12
    for _, file, name in rows:
        tree = ast.parse((ROOT / "service/warpcall_service" / file).read_text())
        assert name in functions_of(tree), f"{file} has no {name}"


def functions_of(tree: ast.Module) -> set[str]:
    """The functions of a module and the methods of its classes, as `Class.method`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    methods = {
        f"{owner.name}.{node.name}"
        for owner in tree.body
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, kinds)
    }
    return methods | {node.name for node in tree.body if isinstance(node, kinds)}


def test_the_problems_are_all_documented() -> None:
    text = page_of("http-api")
    kinds = Problem.__subclasses__()

    assert problems.Internal in kinds
    for kind in kinds:
        assert f"| `{kind.code}` | {kind.status} |" in text


def test_the_routes_are_all_documented(server: Server) -> None:
    paths = json.loads(server.get("/openapi.json")[1])["paths"]
    ops = {f"/v1/kernels/{op['name']}" for op in catalog(server)}
    served = {
        f"{method.upper()} {'/v1/kernels/{name}' if path in ops else path}"
        for path, methods in paths.items()
        for method in methods
    }

    rows = re.findall(
        r"^\| (`(?:GET|POST|PUT|PATCH|DELETE) .*?) \|", page_of("http-api"), re.MULTILINE
    )
    found = {route for row in rows for route in re.findall(r"`(.*?)`", row)}

    pages = {"GET /docs", "GET /openapi.json", "GET /"}
    assert found == served | pages | {"HEAD /healthz", "HEAD /readyz"}


def test_the_dtypes_are_all_documented() -> None:
    found = re.search(r"^Dtypes: `(.*?)`", page_of("http-api"), re.MULTILINE | re.DOTALL)

    assert found
    assert sorted(found[1].split()) == sorted(ITEMSIZE)


def test_the_fixed_limits_are_as_documented(server: Server) -> None:
    section = page_of("http-api").partition("## Limits")[2]
    lists = [
        p["schema"]["maxItems"]
        for op in catalog(server)
        for p in op["params"]
        if p["kind"] == "ints"
    ]

    rows = dict(re.findall(r"^\| ([a-z`].*?) \| (\d.*?) \|$", section, re.MULTILINE))

    assert rows == {
        "request line, headers and trailers": f"{parsing.MAX_HEAD_BYTES >> 10} KiB together; "
        f"request line and headers within {connection.HEAD_TIMEOUT_S:g} s",
        "a TLS handshake": f"{http_server.HANDSHAKE_S:g} s",
        "receiving the rest of a body after its response was sent": f"{connection.LINGER_S:g} s",
        "headers of a request": f"{parsing.MAX_HEADERS}",
        "parameters in a query string": f"{params.MAX_PARAMS}",
        "`Accept`": f"{media_types.MAX_ACCEPT_BYTES} bytes, {media_types.MAX_RANGES} media ranges",
        "`Content-Type` of a call": f"{media_types.MAX_CONTENT_TYPE_BYTES} bytes",
        "header of a safetensors body": f"{wire.MAX_HEADER_BYTES >> 10} KiB, {wire.MAX_BRACKETS} "
        f"brackets, {wire.MAX_COMMAS} commas, {wire.MAX_DIGITS} digits of an integer",
        "header of a `.npy` file": f"{npy.MAX_HEADER_BYTES >> 10} KiB, {npy.MAX_TOKENS} words and "
        "signs, version 1.0 or 2.0",
        "`[` and `{` in the JSON of a call": f"{json_reader.MAX_BRACKETS}",
        "values in the parameters of a JSON body": f"{json_reader.MAX_PARAM_VALUES}",
        "lists in a JSON response": f"{responses.MAX_LISTS}",
        "members of a JSON object": f"{params.MAX_MEMBERS}",
        "a compressed body, beyond its first MiB": f"{decompress.MAX_RATIO} times its bytes",
        "tensors in a body": f"{wire.MAX_TENSORS}",
        "name of a tensor": f"{wire.MAX_NAME_CHARS} characters",
        "dims of a tensor": f"{wire.MAX_DIMS}",
        "entries of a list parameter": f"{max(lists)}",
        "parts of a form": f"{multipart.MAX_PARTS}",
        "occurrences of a form's boundary": f"{multipart.MAX_BOUNDARIES}, each followed by at most "
        f"{multipart.MAX_PADDING} spaces",
        "a parameter in a form": f"{multipart.MAX_TEXT_BYTES >> 10} KiB",
        "description of a job": f"{MAX_BODY_BYTES >> 10} KiB",
        "description of a scratch run": f"{MAX_COMMAND_BYTES >> 10} KiB, and {job_routes.FILE_BYTES} "
        "bytes for each file that an upload may have",
        "regions of shared memory of one user": f"{shared_memory.MAX_REGIONS}",
        "steps of a program": f"{programs.MAX_STEPS}, and {MAX_MESSAGE_BYTES >> 10} KiB for the "
        "description of them and their tensors",
        "the JSON of an upload, without the content of its texts": (
            f"{json_body.MAX_STRUCTURE_BYTES >> 10} KiB"
        ),
        "declaration of launches": f"{implementations.MAX_LAUNCHES_BYTES >> 10} KiB",
        "results and comparisons of jobs": f"1 at a time for each user, {job_service.MAX_WAITING} more "
        f"wait; {job_service.MAX_READS} at a time in all",
    }


def test_the_targets_of_the_makefile_are_all_documented() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    found = re.findall(
        r"^\| `make ([a-z-]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )

    assert sorted(found) == sorted(targets)


def page_of(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text()


def catalog(server: Server) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(server.get("/v1/kernels")[1])["kernels"]
    return listed


def test_the_constants_that_were_measured_are_those_of_the_code() -> None:
    found = []
    for section in page_of("benchmarks/h200-constants").split("\n## ")[1:]:
        (where,) = re.findall(r"^The constants are in (.*)$", section, re.MULTILINE)
        files = re.findall(r"`kernels/(.*?)\.py`", where)
        modules = [importlib.import_module(file.replace("/", ".")) for file in files]
        for name, key, value in CONSTANT.findall(section):
            found.append(name)
            values = [getattr(module, name) for module in modules if hasattr(module, name)]
            shown = [as_shown(v[int(key)] if key else v) for v in values]
            assert value in shown, f"{name} is {shown} in {files}, the page says {value}"

    assert len(found) > 40


def as_shown(value: object) -> str:
    """The value of a constant as the page writes it."""
    value = getattr(value, "value", value)  # of a tl.constexpr
    if isinstance(value, range):
        return f"{value[0]} to {value[-1]}"
    if isinstance(value, tuple):
        return str(tuple(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.mark.parametrize(
    "results",
    [
        *sorted((ROOT / "docs/benchmarks").glob("h?00.json")),
        ROOT / "docs/benchmarks/softmax-bias.json",
    ],
    ids=lambda file: file.stem,
)
def test_the_tables_of_a_benchmark_are_its_results(results: Path) -> None:
    assert markdown(json.loads(results.read_text())) in results.with_suffix(".md").read_text()


def test_the_page_of_a_benchmark_has_the_worst_case_of_each_op() -> None:
    results = json.loads((ROOT / "docs/benchmarks/h200.json").read_text())

    assert families(results["rows"]) in page_of("benchmarks/h200")


def test_the_readme_is_short_and_has_two_links_for_each_reader() -> None:
    text = (ROOT / "README.md").read_text()
    doors = {
        name: LINK.findall(text.partition(f"## {name}\n")[2].partition("\n## ")[0])
        for name in ("I call it", "I write kernels", "I run the server", "I change it")
    }

    assert len(text.splitlines()) <= 150
    assert {name: len(links) for name, links in doors.items()} == dict.fromkeys(doors, 2)
    assert text.index("](docs/images/") < text.index("make demo\nmake serve") < 1500


def test_the_page_of_the_service_has_the_results_of_its_benchmark() -> None:
    file = ROOT / "docs/benchmarks/service.json"

    assert (
        service_report.markdown(json.loads(file.read_text())) in file.with_suffix(".md").read_text()
    )


def test_the_grid_of_isin_is_its_results() -> None:
    file = ROOT / "docs/benchmarks/isin-grid.json"
    results = json.loads(file.read_text())

    assert len(results["cells"]) >= 4 * 12 * 12
    assert grid_page.markdown(results) in file.with_suffix(".md").read_text()
    assert grid_page.heat_map(results) == file.with_suffix(".svg").read_text()
