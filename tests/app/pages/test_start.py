"""The page to get started, for users and for people without a key, and what leads to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest

from tests.app.harness import URL, App, running_app
from tests.app.pages.conftest import Lab
from tests.service.databases import Database
from warpcall import __version__

HTML = {"accept": "text/html"}
ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "service/warpcall_bench/pages/templates"


def commands_of(page: httpx.Response) -> list[str]:
    """The commands of the page, in their order."""
    assert page.status_code == 200, page.text
    return [unescape(one) for one in re.findall(r"<pre><code>(.*?)</code>", page.text, re.DOTALL)]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, dict[str, str]]]:
    """An application with keys and uploads, and the keys by user."""
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    keys = {"ann": database.key("ann", "upload"), "bob": database.key("bob", "call")}
    folder = Path(database.settings["WARPCALL_DATA_DIR"])
    with running_app(data_dir=folder, arena_bytes="16MiB", uploads="trusted") as app:
        yield app, keys


@pytest.fixture
def fresh() -> Iterator[httpx.Client]:
    """A client of an application without keys, jobs and uploads."""
    with running_app(arena_bytes="16MiB") as app, app.client() as http:
        http.headers.update(HTML)
        yield http


def test_the_commands_have_the_address_of_the_server(pages_lab: Lab) -> None:
    with pages_lab.app.client() as http:
        page = http.get("/start", headers=HTML)

    install, login, python, run, curl, bench, own = commands_of(page)
    assert install == f"pip install {URL}/install/warpcall-{__version__}-py3-none-any.whl"
    assert login == f"warpcall login --url {URL}"
    assert f'Client("{URL}")' in python
    assert run == "warpcall run permute x.npy --dims 1,0 -o turned.npy"
    assert curl.startswith(f"curl -sS {URL}/v1/kernels/isin \\\n    --json")
    assert "256x256" in bench  # there is no GPU
    assert f"{URL}/guide/examples/my_permute.py" in own
    assert "everyone who reaches it is <b>local</b>" in page.text


def test_a_person_without_a_key_gets_the_page_and_the_guide_and_nothing_else(
    keyed: tuple[App, dict[str, str]],
) -> None:
    with keyed[0].client() as http:
        http.headers.update(HTML)
        page = http.get("/start")
        guide = http.get("/guide/deploy")
        search = http.get("/guide?q=key")
        example = http.get("/guide/examples/my_permute.py")
        others = [http.get(path).status_code for path in ("/", "/startled", "/guided", "/jobs")]
        login = http.get("/login").text

    assert "Authorization: Bearer $WARPCALL_API_KEY" in commands_of(page)[4]
    assert "The command asks for the key. Later" in page.text
    assert 'href="./login"' in page.text
    assert {answer.status_code for answer in (guide, search, example)} == {200}
    assert all("<nav" not in answer.text for answer in (page, guide, search))
    assert set(others) == {303}
    assert '<a href="./start">Get started</a>' in login


def test_a_user_is_named_and_reads_which_role_is_missing(
    keyed: tuple[App, dict[str, str]],
) -> None:
    app, keys = keyed
    pages = {}
    for user, key in keys.items():
        with app.client(key) as http:
            pages[user] = http.get("/start", headers=HTML).text

    assert "the key of <b>ann</b>" in pages["ann"]
    assert "needs a key with the role" not in pages["ann"]
    assert (
        "needs a key with the role <code>bench</code>, and yours has <code>call</code>"
        in pages["bob"]
    )
    assert (
        "needs a key with the role <code>upload</code>, and yours has <code>call</code>"
        in pages["bob"]
    )


def test_a_browser_whose_session_has_ended_gets_the_page_all_the_same(
    keyed: tuple[App, dict[str, str]],
) -> None:
    with keyed[0].client() as http:
        page = http.get("/start", headers={**HTML, "cookie": f"warpcall={'x' * 40}"})
        wrong = http.get("/start", headers={**HTML, "authorization": "Bearer wc_00000000_wrong"})

    assert page.status_code == 200
    assert wrong.status_code in (303, 401)


def test_the_page_says_that_uploads_are_off(fresh: httpx.Client) -> None:
    page = fresh.get("/start").text

    assert "This server runs no uploaded code" in page


def test_the_first_page_says_what_can_be_done_and_shows_an_example_until_there_are_jobs(
    fresh: httpx.Client, browser_http: httpx.Client
) -> None:
    empty, used = fresh.get("/").text, browser_http.get("/").text

    for page in (empty, used):
        assert "You can call 8 ops and benchmark them. Your own kernels cannot be timed" in page
        assert '<a href="./start">Get started</a>' in page
    assert "What a result looks like" in empty
    assert "What a result looks like" not in used


def test_the_example_has_the_numbers_of_the_guide() -> None:
    shown = (TEMPLATES / "example_result.html").read_text()
    cells = [
        re.sub("<[^>]+>", " ", row).replace(" to ", "-").replace(" %", "%").split()
        for row in re.findall(r"<tr><td>.*</tr>", shown)
    ]
    guide = (ROOT / "docs/benchmark-your-kernel.md").read_text()
    rows = [row for line in guide.splitlines() if len(row := line.split()) >= 5]

    for row in cells:
        numbers = [cell.replace("17.90", "17.9") for cell in row]
        assert numbers in rows, numbers


@pytest.mark.parametrize(
    "template",
    [
        path.name
        for path in sorted(TEMPLATES.glob("*.html"))
        if 'class="empty"' in path.read_text() and path.name != "compiled.html"  # has no command
    ],
)
def test_a_page_that_has_nothing_to_show_leads_to_the_start(template: str) -> None:
    parts = (TEMPLATES / template).read_text().split('<div class="empty">')[1:]

    assert all("start" in part.partition("</div>")[0] for part in parts)


def test_the_navigation_leads_to_the_start_and_the_guide(browser_http: httpx.Client) -> None:
    page = browser_http.get("/jobs").text

    assert '<a href="./start">Get started</a>' in page
    assert '<a href="./guide">Guide</a>' in page
