"""The page of a case shows what profiles contain, whatever became of their files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urldefrag

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.artefacts.kept import Here, keeping
from tests.service.artefacts.shown import NCU_TEXT, kernel, profile, report, top
from tests.service.auth.browsers import Site
from tests.service.databases import Database, Postgres, new_postgresql
from tests.service.job_requests import client
from tests.service.nodes.test_nodes import killed, node, states
from tests.service.stored import finished
from tests.waiting import until
from warpcall_bench.artefacts.contents import MAX_REPORT_BYTES, MAX_TABLE_BYTES
from warpcall_bench.artefacts.service import NewArtefact

pytestmark = pytest.mark.slow

MARKUP = "<img src=x onerror=alert(1)>"
ESCAPED = "&lt;img src=x onerror=alert(1)&gt;"
HTML = {"accept": "text/html"}
AT_LIMIT = report(kernel("at_limit")).removesuffix(b"}") + b', "other": "'
# Of the first case, by the implementation that has it. Another one has an error.
FILES = {
    "ncu.txt": {
        "text": (NCU_TEXT + MARKUP).encode(),
        "long": b"a line\n" * 9362 + b" " + "é".encode() + b"behind the end",
        "binary": b"\xff\x00\x1b[31m\xe2\x80\xae",
        "lost": b"on no disk",
        "damaged": b"of another size",
    },
    "kernels.json": {
        "top": top(MARKUP),
        "none": top(),
        "broken": b"{",
        "odd": top(MARKUP, share=2.0),
        "long": top(*(f"k{n}" for n in range(21))),
        "large": top("k").ljust(MAX_TABLE_BYTES + 1024),
    },
    "compiled.json": {
        "report": report(
            kernel(MARKUP, launches=3, config=MARKUP, limited_by=[MARKUP]),
            failures=[MARKUP],
            stopped=MARKUP,
            gpu=MARKUP,
        ),
        "empty": report(),
        "large": report(kernel("large")).ljust(MAX_REPORT_BYTES + (1 << 20)),
        "at-limit": AT_LIMIT + b" " * (MAX_REPORT_BYTES - len(AT_LIMIT) - 2) + b'"}',
        "values": report(kernel("values"), other=[0] * 100_000),
        "no-json": b"{",
        "no-report": b'{"kernels": []}',
        "nested": b"[" * 100_000,
        "many": report(*[kernel("many")] * 33),
        "wrong": report(kernel("wrong", registers="56")),
        "never": report(kernel("never", max_warps=0)),
    },
}
NO_TABLE = "its file is no table of kernels"
REASON = f"its process ended with {MARKUP}"


@dataclass(frozen=True)
class Lab:
    """A server, keys of users, and two jobs of alice's: all may read `open`, others not `secret`."""

    server: Server
    keys: dict[str, str]
    open: str
    secret: str

    def page(self, user: str = "bob", job: str = "", rest: str = "/cases/0") -> httpx.Response:
        with client(self.server, self.keys[user]) as http:
            return http.get(f"/jobs/{job or self.open}{rest}", headers=HTML)

    def shown(self, file: str, implementation: str) -> str:
        """The part of the page that shows an artefact."""
        page = self.page()
        assert page.status_code == 200, page.text[:500]
        return section(page.text, profile(file, implementation).name)


def section(page: str, name: str) -> str:
    found = re.findall(
        rf'<section id="artefact-{re.escape(name)}">(.*?)</section>', page, re.DOTALL
    )
    assert len(found) == 1, name
    return str(found[0])


def text_of(part: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", part).split())


def add_all(here: Here, job: str) -> None:
    for file, contents in FILES.items():
        for implementation, content in contents.items():
            assert here.add(job, content, profile(file, implementation)) == ""
    here.fail(job, profile("ncu.txt", "failed"), REASON)
    other = NewArtefact(name="trace", kind="torch-profile", media_type="x/y", position=0)
    assert here.add(job, b"a trace", other) == ""
    assert (
        here.add(
            job, b"of the whole job", NewArtefact(name="all", kind="ncu-text", media_type="x/y")
        )
        == ""
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("data")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys = {user: database.key(user, "bench") for user in ("alice", "bob")}
    keys |= {"caller": database.key("caller"), "root": database.key("root", "admin")}
    store = database.store()
    jobs = [finished(store, "alice", 2), finished(store, "alice", 2, private=True)]
    here = keeping(database, store)
    add_all(here, jobs[0])
    assert here.add(jobs[1], b"a secret", profile("ncu.txt", "text")) == ""
    for row in here.rows():
        if row.implementation == "lost":
            (here.folder / row.file).unlink()
        if row.implementation == "damaged":
            (here.folder / row.file).write_bytes(b"short")
    here.artefacts._threads.close()
    store.close()
    with running_server(database.settings) as server:
        yield Lab(server, keys, jobs[0], jobs[1])


def test_the_text_of_nsight_compute_is_shown_and_escaped(lab: Lab) -> None:
    part = lab.shown("ncu.txt", "text")

    assert f'<pre tabindex="0">{NCU_TEXT}{ESCAPED}</pre>' in part
    assert f'v1/jobs/{lab.open}/artefacts/case-0.text.ncu.txt" download>' in part


def test_of_a_long_text_the_first_64_kib_are_shown(lab: Lab) -> None:
    part = lab.shown("ncu.txt", "long")

    (text,) = re.findall(r"<pre[^>]*>(.*?)</pre>", part, re.DOTALL)
    assert len(text.replace("\ufffd", "")) == 9362 * 7 + 1
    assert text.endswith("a line\n \ufffd")
    assert "These are its first 64 KiB." in part
    assert "These are its first 64 KiB." not in lab.shown("ncu.txt", "text")


def test_what_is_not_printable_is_not_shown(lab: Lab) -> None:
    assert '<pre tabindex="0">\ufffd  [31m </pre>' in lab.shown("ncu.txt", "binary")


def test_the_kernels_of_a_report_are_a_table(lab: Lab) -> None:
    part = lab.shown("compiled.json", "report")

    header = "registers spilled stack shared warps stages occupancy limited by"
    assert header in text_of(part)
    row = f"56 24 B 40 B 16.9 kB 4 3 56 % {ESCAPED}"
    assert row in text_of(part)
    assert f"{ESCAPED} grid 128×2×1, 3 launches, {ESCAPED} {row}" in text_of(part)
    assert f"A configuration cannot be compiled: {ESCAPED}" in part
    assert f"report ended early, so launches may be missing: {ESCAPED}" in part
    assert MARKUP not in lab.page().text
    assert "a line of PTX" not in part


def test_the_top_kernels_of_a_trace_are_a_table(lab: Lab) -> None:
    part, none = lab.shown("kernels.json", "top"), lab.shown("kernels.json", "none")

    assert "Kernels in a trace of 3 calls: 50" in text_of(part)
    assert f"{ESCAPED} 2 50.00 25.00 100 %" in text_of(part)
    assert "<table" not in none
    assert "data-trace" not in part, "its trace was deleted"


def test_a_report_without_kernels_says_so(lab: Lab) -> None:
    assert "It launches no Triton kernel in this case." in lab.shown("compiled.json", "empty")


def test_an_artefact_without_a_file_shows_its_error(lab: Lab) -> None:
    part = lab.shown("ncu.txt", "failed")

    assert f'<p class="error">Its process ended with {ESCAPED}.</p>' in part
    assert "download" not in part


@pytest.mark.parametrize(
    ("file", "implementation", "why"),
    [
        ("compiled.json", "large", "its file has 5 MiB, and a page reads at most 4 MiB"),
        ("compiled.json", "no-json", "its file is no compile report"),
        ("compiled.json", "no-report", "its file is no compile report"),
        ("compiled.json", "nested", "its file is no compile report"),
        ("compiled.json", "many", "its file is no compile report"),
        ("compiled.json", "values", "its file is no compile report"),
        ("compiled.json", "wrong", "its file is no compile report"),
        ("compiled.json", "never", "its file is no compile report"),
        ("kernels.json", "broken", NO_TABLE),
        ("kernels.json", "odd", NO_TABLE),
        ("kernels.json", "long", NO_TABLE),
        ("kernels.json", "large", "its file has 65 KiB, and a page reads at most 64 KiB"),
        ("ncu.txt", "lost", "its file is lost or damaged"),
        ("ncu.txt", "damaged", "its file is lost or damaged"),
    ],
)
def test_a_file_that_cannot_be_shown_is_a_link(
    lab: Lab, file: str, implementation: str, why: str
) -> None:
    part = lab.shown(file, implementation)

    name = f"case-0.{implementation}.{file}"
    assert f"It is not shown here, because {why}: {name}" in text_of(part)
    assert f'v1/jobs/{lab.open}/artefacts/{name}" download>' in part


def test_a_report_of_the_largest_size_is_shown(lab: Lab) -> None:
    assert "at_limit" in text_of(lab.shown("compiled.json", "at-limit"))


def test_a_page_has_only_the_profiles_of_its_case(lab: Lab) -> None:
    first, second = lab.page().text, lab.page(rest="/cases/1").text

    assert first.count("<section id=") == sum(map(len, FILES.values())) + 1
    assert "<section id=" not in second
    assert ">Profiles<" not in second


def test_the_page_of_the_job_links_to_where_they_are_shown(lab: Lab) -> None:
    job, case = lab.page(rest="").text, lab.page().text

    links = re.findall(r'href="([^"]*)">(?:ncu-text|compile-report|torch-kernels)</a>', job)
    places = [urldefrag(link) for link in links]
    assert len(links) == case.count("<section id=")
    assert {place.url for place in places} == {f"../jobs/{lab.open}/cases/0"}
    assert all(f'<section id="{unquote(place.fragment)}">' in case for place in places)
    assert job.count(" download>") == len(links) + 1  # without the error; the trace, the whole job
    assert ">torch-profile</a>" not in job


def test_a_share_link_shows_no_profiles(lab: Lab) -> None:
    with client(lab.server, lab.keys["alice"]) as http:
        link = http.post(f"/v1/jobs/{lab.open}/shares", json={}).json()["url"]
    with Site(lab.server, Database("sqlite", {})).browser(accept="text/html") as guest:
        page = guest.get(f"{link}/cases/0")

    assert page.status_code == 200
    for word in ("artefact", "Profiles", "permute_kernel", "compiled"):
        assert word not in page.text


@pytest.mark.parametrize("user", ["bob", "caller"])
def test_profiles_of_a_private_job_are_not_found_by_others(lab: Lab, user: str) -> None:
    hidden = lab.page(user, lab.secret)

    assert hidden.status_code == 404
    assert "a secret" not in hidden.text
    assert "a secret" in lab.page("alice", lab.secret).text
    assert lab.page(user).status_code == 200


def test_profiles_on_another_server_are_links_there_and_after_it_is_gone(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = new_postgresql(postgres, tmp_path)
    store = database.store()
    store.migrate()
    job = finished(store, "local", 1)
    at_a = {**database.settings, "WARPCALL_DATA_DIR": str(tmp_path / "a")}
    here = keeping(Database("postgresql", at_a), store)
    for file in FILES:
        assert here.add(job, report(), profile(file, "torch")) == ""
    here.artefacts._threads.close()
    store.close()
    with (
        node(database, tmp_path / "b") as b,
        httpx.Client(base_url=b.url, timeout=30, headers=HTML) as at_b,
    ):
        with killed(), node(database, tmp_path / "a") as a:
            until(lambda: states(a) == {a.url: "alive", b.url: "alive"})
            other = at_b.get(f"/jobs/{job}/cases/0")
            a.process.kill()
        until(lambda: states(b)[a.url] == "gone")
        gone = at_b.get(f"/jobs/{job}/cases/0")

    for page, why in ((other, "on another server"), (gone, "on a server that is gone")):
        assert page.status_code == 200
        assert text_of(page.text).count(f"because its file is {why}: case-0.torch.") == 3
        assert page.text.count(" download>") == 3
