"""What commands print with --json fits the JSON Schema that the server publishes in /openapi.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.e2e.command import Warpcall, command_for
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF
from tests.service.monitors.lab import add_runs
from tests.service.monitors.series import quiet, times
from tests.waiting import until

pytestmark = pytest.mark.slow

PERMUTE = "def permute(x, dims):\n    return x.permute(dims).contiguous(){}\n"
CASE = ("--shape", "64x64", "--dtype", "f32", "--dims", "1,0")

Check = Callable[[Any, str], None]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})


@pytest.fixture(scope="module")
def server(database: Database) -> Iterator[Server]:
    # On a busy machine a profile takes the device for longer than a job may by default.
    own = {"WARPCALL_UPLOADS": "trusted", "WARPCALL_JOB_BLOCK_S": "100"}
    settings = {**database.settings, **BRIEF, **own}
    with running_server(settings) as running:
        yield running


@pytest.fixture(scope="module")
def fits(server: Server) -> Check:
    """Check a value against a schema by its name, and that the schema refuses something else."""
    published = httpx.get(f"{server.url}/openapi.json").json()

    def check(value: Any, name: str) -> None:
        schema = {"components": published["components"], "$ref": f"#/components/schemas/{name}"}
        validator = jsonschema_rs.validator_for(schema)
        assert [error.message for error in validator.iter_errors(value)] == []
        known = published["components"]["schemas"][name]["properties"]
        assert {*value} <= {*known}, "a field that the schema does not have"
        for field in value:
            without = {key: one for key, one in value.items() if key != field}
            assert not validator.is_valid(without), f"{name}.{field} may be absent"

    return check


@pytest.fixture
def warpcall(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Warpcall:
    monkeypatch.chdir(tmp_path)
    return command_for(server, monkeypatch, capsys)


def test_jobs_with_profiles_and_their_artefacts(warpcall: Warpcall, fits: Check) -> None:
    options = (*CASE, "--precision", "quick", "--vs", "copy", "--profile", "torch", "--json")
    code, out, err = warpcall("bench", "permute", *options)
    assert code == 0, err
    results = json.loads(out)
    _, listed, _ = warpcall("artefacts", results["id"], "--json")
    artefacts = json.loads(listed)
    name = artefacts[0]["name"]
    _, saved, _ = warpcall("artefacts", results["id"], name, "-o", "trace.json", "--json")

    fits(results, "Results")
    assert len(artefacts) == 4, "a trace and its top kernels, of each implementation"
    for one in (*artefacts, json.loads(saved)):
        fits(one, "Artefact")


def test_monitors(warpcall: Warpcall, database: Database, fits: Check) -> None:
    def run(*words: str) -> Any:
        code, out, err = warpcall("monitors", *words, "--json")
        assert code == 0, err
        return json.loads(out)

    added = run("add", "permute", *CASE, "--precision", "quick")
    name = added["id"]
    until(lambda: run("show", name)["series"])
    store = database.store()
    add_runs(store, name, times(quiet, 0, 12, 10, 1.05), newest=True)
    store.close()
    until(lambda: run("show", name)["found"])
    shown, listed = run("show", name), run("list")
    paused, resumed = run("pause", name), run("resume", name)
    removed = run("remove", name)

    fits(added, "NewMonitor")
    for one in (shown, paused, resumed):
        fits(one, "MonitorDetails")
    (only,) = listed
    fits(only, "Monitor")
    assert removed == {"removed": name}


def test_a_regression_check(warpcall: Warpcall, fits: Check) -> None:
    for name, end in (("old", ""), ("new", ".clone().clone().clone()")):
        Path(f"{name}.py").write_text(PERMUTE.format(end))

    code, out, err = warpcall(
        "regression", "permute", "--base", "old.py", "--head", "new.py", *CASE, "--json"
    )

    assert code in (0, 1, 3), err
    fits(json.loads(out), "Regression")
