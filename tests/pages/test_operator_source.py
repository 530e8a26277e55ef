"""The source of the operator's modules: who sees it on the pages, and that it stays text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.servers import running_server
from tests.service.databases import Database

MARKUP = '<img src=x onerror="alert(1)">'
SOURCE = f'''
"""Kernels of the lab: {MARKUP}"""
from warpcall_kernels.measuring import Implementation

def build(op, params):
    return lambda x: x.permute(params["dims"]).contiguous()

IMPLEMENTATIONS = (Implementation("mine", {MARKUP!r}, build, ("permute",)),)
'''
LINK = 'href="../modules/my_lab.kernels"'


@pytest.fixture(scope="module", params=["False", "True"])
def browsers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, httpx.Client]]:
    """Browsers of a user and of an administrator; the user is also `reader` if the setting says so."""
    folder = tmp_path_factory.mktemp("modules")
    package = folder / "my_lab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "secret.py").write_text("SECRET = 1\n")
    (package / "kernels.py").write_text(SOURCE)
    (folder / "long_lab.py").write_text("IMPLEMENTATIONS = ()\n" + "#" * (1 << 20))
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    keys = {"ann": database.key("ann", "upload"), "root": database.key("root", "admin")}
    settings = {
        **database.settings,
        "WARPCALL_ARENA_BYTES": "16MiB",
        "WARPCALL_JOB_MODULES": "my_lab.kernels,long_lab,no_such_lab",
        "WARPCALL_JOB_MODULES_READABLE": request.param,
        "PYTHONPATH": str(folder),
    }
    with running_server(settings) as server, ExitStack() as stack:
        found = {}
        for name, key in keys.items():
            headers = {"accept": "text/html", "authorization": f"Bearer {key}"}
            client = httpx.Client(base_url=server.url, headers=headers, timeout=60)
            found[name] = stack.enter_context(client)
        if request.param == "True":
            found["reader"] = found["ann"]
        yield found


def test_who_may_read_a_module_sees_its_file_and_links_to_it(
    browsers: dict[str, httpx.Client],
) -> None:
    for http in (browsers["root"], browsers.get("reader", browsers["root"])):
        page = http.get("/modules/my_lab.kernels")
        missing, long = (http.get(f"/modules/{name}") for name in ("no_such_lab", "long_lab"))

        assert page.status_code == 200
        assert "IMPLEMENTATIONS" in page.text
        assert MARKUP not in page.text
        assert page.text.count("&lt;img src=x") >= 2
        assert LINK in http.get("/kernels/permute").text
        assert 'href="./modules/my_lab.kernels"' in http.get("/kernels").text
        for other in (missing, long):
            assert (other.status_code, "no Python file" in other.text) == (200, True)
        assert "there is no module no_such_lab" in missing.text


def test_users_see_it_only_if_the_operator_lets_them(browsers: dict[str, httpx.Client]) -> None:
    http, shown = browsers["ann"], "reader" in browsers

    page, nothing = http.get("/modules/my_lab.kernels"), http.get("/modules/nothing")

    assert (page.status_code, nothing.status_code) == (200 if shown else 404, 404)
    assert ("IMPLEMENTATIONS" in page.text) is shown
    for path in ("/kernels/permute", "/kernels"):
        text = http.get(path).text
        assert ("/modules/my_lab.kernels" in text) is shown
        assert "mine" in text


@pytest.mark.parametrize(
    "name",
    ["my_lab.secret", "my_lab", "os", "..%2Fmy_lab", "my_lab/secret", "my_lab.kernels.x", MARKUP],
)
def test_no_other_file_is_shown(browsers: dict[str, httpx.Client], name: str) -> None:
    page = browsers["root"].get(f"/modules/{name}")

    assert page.status_code == 404
    assert "SECRET" not in page.text
    assert MARKUP not in page.text
