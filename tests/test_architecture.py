"""Which module may import which, and what no file may contain."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "warpcall": ROOT / "client/warpcall",
    "warpcall_kernels": ROOT / "kernels/warpcall_kernels",
    "warpcall_service": ROOT / "service/warpcall_service",
    "warpcall_bench": ROOT / "service/warpcall_bench",
}
MAY_IMPORT = {
    "warpcall": {"warpcall"},
    "warpcall_kernels": {"warpcall_kernels"},
    "warpcall_service": {"warpcall", "warpcall_kernels", "warpcall_service"},
    "warpcall_bench": {"warpcall", "warpcall_kernels", "warpcall_service", "warpcall_bench"},
}
# The folders and modules of the serving core, and of the benchmark platform, which is an extension of
# the core. A module imports only what stands before it.
CORE = (
    "text",
    "findings",
    "server_settings",
    "settings",
    "identity",
    "quotas",
    "log_writer",
    "logs",
    "processes",
    "store",
    "http",
    "lanes",
    "admission",
    "formats",
    "nodes",
    "extension",
    "tracing",
    "devices",
    "worker",
    "auth",
    "doctor",
    "backup",
    "calls",
    "oip",
    "api",
    "gateway",
    "app",
    "startup",
    "server",
    "supervisor",
    "cli",
)
PLATFORM = (
    "settings",
    "compressed",
    "streamed",
    "json_body",
    "words",
    "runs",
    "profilers",
    "programs",
    "uploads",
    "artefacts",
    "jobs",
    "groups",
    "monitors",
    "compile_reports",
    "evaluations",
    "verifications",
    "summaries",
    "shares",
    "retention",
    "drawing",
    "pages",
    "forms",
    "services",
    "extension",
)
ORDERS = {"warpcall_service": CORE, "warpcall_bench": PLATFORM}
# All modules of the core that the platform imports. What it uses of a running server is in `Core`.
INTERFACE = {
    "admission",
    "auth.sessions",
    "auth.stored_quotas",
    "auth.tables",
    "auth.usage",
    "auth.users",
    "devices.tensors",
    "extension",
    "findings",
    "formats.form",
    "formats.media_types",
    "formats.npy",
    "formats.params",
    "formats.payloads",
    "http.caller",
    "http.exchange",
    "http.openapi_parts",
    "http.problems",
    "http.router",
    "http.route_io",
    "identity",
    "lanes.activity",
    "lanes.device_lease",
    "lanes.device_reading",
    "lanes.messages",
    "lanes.status",
    "nodes.registry",
    "nodes.server_identity",
    "processes.child",
    "processes.child_log",
    "processes.imports",
    "processes.spawn",
    "processes.temporary",
    "quotas",
    "server_settings",
    "settings",
    "store.database",
    "store.ids",
    "store.schema",
    "store.threads",
    "store.times",
    "text",
}
MAY_IMPORT_TORCH = {
    "devices",
    "programs",
    "worker",
}  # folders of the service whose modules run beside a device
MAY_IMPORT_UVICORN = {"http", "startup"}  # folders of the service that know the HTTP server
# Folders of the service that know no requests: they run beside a device, or could without HTTP.
NO_FASTAPI = {
    "processes",
    "store",
    "lanes",
    "runs",
    "profilers",
    "devices",
    "programs",
    "worker",
}
NO_SQL = {"pages", "forms", "http", "lanes", "calls", "oip", "api"}  # folders of the service
WRITES = {"insert", "update", "delete"}  # SQLAlchemy's functions, whose first argument is a table
OF_SESSIONS = {"session.add", "session.add_all", "session.delete"}  # methods that write rows
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root|opt|home|Users)/")
REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|jfrog|artifactory|nexus)[\w-]*\.[a-z]{2,}\b", re.IGNORECASE
)


@pytest.fixture(autouse=True, scope="module")
def _forget_trees() -> Iterator[None]:
    """Free the syntax trees afterwards: other tests of this process would search them for garbage."""
    yield
    nodes_of.cache_clear()


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_between_the_packages_go_one_way(package: str) -> None:
    wrong = [
        f"{file.name} imports {name}"
        for file in sources(package)
        for name in imported(file)
        if name in PACKAGES and name not in MAY_IMPORT[package]
    ]

    assert wrong == []


def test_only_folders_that_run_beside_a_device_import_kernels_or_torch() -> None:
    heavy = {
        part_of(file)
        for file in service()
        if {"torch", "triton", "warpcall_kernels"} & set(imported(file))
    }

    assert heavy == MAY_IMPORT_TORCH


@pytest.mark.parametrize("package", ORDERS)
def test_folders_of_the_service_import_in_one_order(package: str) -> None:
    order = ORDERS[package]
    used = {
        (part_of(file), target)
        for file in sources(package)
        for target in parts_imported(file, package)
    }

    assert {part for arrow in used for part in arrow} <= set(order)
    assert [
        f"{part} imports {target}"
        for part, target in sorted(used)
        if order.index(target) > order.index(part)
    ] == []


def test_the_core_names_the_platform_once() -> None:
    names = [
        f"{file.name}: {line.strip()}"
        for file in sources("warpcall_service")
        for line in file.read_text().splitlines()
        if "warpcall_bench" in line
    ]

    assert len(names) == 1, names


def test_the_platform_imports_only_the_interface_of_the_core() -> None:
    used = {
        module
        for file in sources("warpcall_bench")
        for module in modules_imported(file)
        if module.startswith("warpcall_service.")
    }

    assert used == {f"warpcall_service.{module}" for module in INTERFACE}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_leads_back_to_its_own_module(package: str) -> None:
    """Imports in functions and for types count as well."""
    graph = {module_of(file): modules_imported(file) for file in sources(package)}

    with_cycle = [module for module in graph if module in reachable(graph, module)]

    assert with_cycle == []


def test_tables_know_only_other_tables_and_stand_where_their_rows_are_written() -> None:
    """Other folders may read rows, but neither make, delete nor change some.

    A row whose attribute is set is found where a parameter is annotated with its class.
    """
    known: set[str] = set()
    elsewhere, written = [], []
    with_tables = {file.parent.name for file in service() if file.stem == "tables"}
    for file in service():
        folder = part_of(file)
        if file.name == "tables.py":
            known |= modules_imported(file)
            continue
        nodes = nodes_of(file)
        owners = {
            alias.asname or alias.name: str(node.module).split(".")[1]
            for node in nodes
            if isinstance(node, ast.ImportFrom) and str(node.module).endswith(".tables")
            for alias in node.names
        }
        for node in nodes:
            if isinstance(node, ast.ClassDef) and "Base" in map(ast.unparse, node.bases):
                elsewhere.append(f"{file.name} has the table {node.name}")
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                names = [ast.unparse(one) for one in node.args] if called in WRITES else [called]
                written += [f"{file} writes {n}" for n in names if owners.get(n, folder) != folder]
                if ast.unparse(node.func) in OF_SESSIONS and folder not in with_tables:
                    written.append(f"{file}: {ast.unparse(node)}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = (*node.args.args, *node.args.kwonlyargs)
                rows = {one.arg: ast.unparse(one.annotation) for one in given if one.annotation}
                written += [
                    f"{file} sets {ast.unparse(one)}"
                    for one in ast.walk(node)
                    if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
                    if owners.get(rows.get(ast.unparse(one.value), ""), folder) != folder
                ]

    assert {one for one in known if not one.endswith(".tables")} == {
        "warpcall_service.identity",
        "warpcall_service.store.schema",
    }
    assert elsewhere == []
    assert written == []


def test_pages_and_routes_write_no_sql() -> None:
    """What they show or answer comes from functions of the folder that has the tables."""
    files = [
        file for file in service() if part_of(file) in NO_SQL or file.name.endswith("routes.py")
    ]
    knows = [
        f"{file.name}: {ast.unparse(node)}"
        for file in files
        for node in nodes_of(file)
        if isinstance(node, ast.Import | ast.ImportFrom)
        if "sqlalchemy" in ast.unparse(node)
        if ast.unparse(node) != "from sqlalchemy.orm import Session"  # the type that they pass on
    ]
    uses = [
        f"{file.name}: {ast.unparse(node)}"
        for file in files
        if file.is_relative_to(PACKAGES["warpcall_bench"])
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "session"
    ]

    assert knows == []
    assert uses == []


def test_only_http_and_startup_know_the_http_server() -> None:
    knows = {part_of(file) for file in service() if {"uvicorn", "httptools"} & set(imported(file))}

    assert knows == MAY_IMPORT_UVICORN


def test_what_could_run_without_http_does_not_import_fastapi() -> None:
    knows = {part_of(file) for file in service() if {"fastapi", "starlette"} & set(imported(file))}

    assert knows
    assert knows & NO_FASTAPI == set()


def test_the_client_reaches_torch_only_where_a_caller_brought_it() -> None:
    at_import = [
        file.name
        for file in sources("warpcall")
        if {"torch", "triton"} & set(imported(file, nested=False))
    ]

    assert at_import == []


def test_client_and_core_are_imported_without_torch_and_do_not_ask_for_it() -> None:
    """An import of torch that would be suppressed where it fails counts as well."""
    modules = ("warpcall", "warpcall._cli.main", "warpcall_service.app")
    program = f"""
import importlib, sys
asked = []
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            asked.append(name)
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
for module in {modules}:
    importlib.import_module(module)
    print(module, asked)
"""

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{module} []" for module in modules]


@pytest.mark.parametrize("package", ["warpcall", "warpcall_service", "warpcall_bench"])
def test_a_public_class_name_stands_once_in_a_package(package: str) -> None:
    names = Counter(
        node.name
        for file in sources(package)
        for node in nodes_of(file)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_a_folder_has_three_modules_or_more() -> None:
    """Fewer belong into the folder that uses them, or into one module."""
    packages = ("warpcall", *ORDERS)
    folders = {file.parent for package in packages for file in sources(package)}
    few = [
        str(folder)
        for folder in folders
        if len([file for file in folder.glob("*.py") if file.stem != "__init__"]) < 3
    ]

    assert few == []


@pytest.mark.parametrize("package", ORDERS)
def test_the_page_of_the_architecture_says_of_a_folder_what_its_docstring_says(
    package: str,
) -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rows = page.partition(f"| `{package}` |")[2].partition("\n\n")[0]
    folders = [name for name in ORDERS[package] if (PACKAGES[package] / name).is_dir()]
    lacking = []
    for name in folders:
        text = (PACKAGES[package] / name / "__init__.py").read_text()
        sentence = " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())
        if not sentence or f"| `{name}` | {sentence}" not in rows:
            lacking.append(name)

    assert folders
    assert lacking == []


def test_tests_of_the_application_start_no_process() -> None:
    files = sorted((ROOT / "tests/app").glob("**/*.py"))
    wrong = [
        f"{file.name} imports {module}"
        for file in files
        for module in modules_named(file)
        if module.startswith(("subprocess", "demo", "tests.servers", "tests.forks"))
    ]

    assert files
    assert wrong == []


def test_no_file_names_a_path_of_one_machine_or_a_package_registry() -> None:
    found = [
        f"{name}: {match[0]}"
        for name, text in texts()
        for pattern in (MACHINE_PATH, REGISTRY)
        for match in pattern.finditer(text)
        if name != "LICENSE"
    ]

    assert found == []


def sources(package: str) -> list[Path]:
    """The package's modules."""
    found = sorted(PACKAGES[package].glob("**/*.py"))
    assert found
    return found


def service() -> list[Path]:
    """The modules of the core and of the platform."""
    return [file for package in ORDERS for file in sources(package)]


def imported(file: Path, *, nested: bool = True) -> Iterator[str]:
    """The top-level packages that a file imports, anywhere or only when it is itself imported."""
    for node in nodes_of(file) if nested else run_at_import(nodes_of(file)[0]):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports relatively; write the name out"
            yield str(node.module).partition(".")[0]


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    """All nodes of a module's syntax tree, its root first. Each file is parsed once for all tests."""
    return [*ast.walk(ast.parse(file.read_text()))]


def modules_named(file: Path) -> Iterator[str]:
    """All modules that a file imports, by their whole names."""
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def part_of(file: Path) -> str:
    """The folder or the module directly in its package that a file belongs to."""
    return (*module_of(file).split("."), "")[1]


def parts_imported(file: Path, package: str) -> Iterator[str]:
    """The other folders and modules directly in its own package that a file imports.

    Tables do not count: they import only each other.
    """
    for module in modules_imported(file):
        root, part = module.split(".")[:2]
        if root == package and part != part_of(file) and not module.endswith(".tables"):
            yield part


def module_of(file: Path) -> str:
    """The dotted name of a module."""
    package = next(p for p in PACKAGES.values() if file.is_relative_to(p))
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules_imported(file: Path) -> frozenset[str]:
    """The modules of our packages, except their roots, that a file imports anywhere."""
    found = set()
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in PACKAGES:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if is_module(name) else str(node.module))
    return frozenset(name for name in found if "." in name)


@functools.cache
def is_module(name: str) -> bool:
    package, *rest = name.split(".")
    path = PACKAGES[package].joinpath(*rest)
    return path.with_suffix(".py").is_file() or path.is_dir()


def reachable(graph: Mapping[str, frozenset[str]], start: str) -> set[str]:
    """All modules that `start` imports, directly or through others."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for module in graph.get(ahead.pop(), ()):
            if module not in found:
                found.add(module)
                ahead.append(module)
    return found


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """All but the bodies of functions and of `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        is_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not is_types and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from run_at_import(child)


def files() -> list[str]:
    """Every file that is, or would be, committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def texts() -> Iterator[tuple[str, str]]:
    """Name and content of every file that is text."""
    for name in files():
        try:
            yield name, (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue  # the demo's picture and sound
