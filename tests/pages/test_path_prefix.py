"""The pages below a path prefix, behind a proxy that removes it, with a session from log-in on."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import expect

from tests.pages import lab
from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.servers import running_server
from tests.service.databases import Database
from warpcall_service.store.database import Store

pytestmark = needs_chromium
expect.set_options(timeout=WAIT_MS)
PREFIX = "/lab/warpcall"
HOP_BY_HOP = ("connection", "transfer-encoding", "keep-alive", "content-length")


@contextmanager
def proxy(port: int) -> Iterator[str]:
    """The address of a proxy that passes what is below PREFIX on to a port, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            upstream.request(self.command, self.path.removeprefix(PREFIX), body, dict(self.headers))
            answer = upstream.getresponse()
            content = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        do_GET = do_POST = pass_on  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_session_below_a_prefix_never_leaves_it(tmp_path: Path) -> None:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path)})
    key = database.key("alice", "bench")
    store = Store(None, tmp_path)
    lab.submit(store, "alice", "permute", lab.permute_cases((64,)), ["warpcall", "torch"])
    job = lab.measure(store, {"warpcall": 0.9, "torch": 0.2})
    store.close()

    with (
        running_server({**database.settings, "WARPCALL_ARENA_BYTES": "16MiB"}) as server,
        proxy(server.port) as url,
        chromium() as browser,
        opened(browser) as tab,
    ):
        tab.page.goto(f"{url}/jobs/{job}?from=0")
        tab.page.get_by_label("API key").fill(key)
        tab.page.get_by_role("button", name="Log in").click()
        expect(tab.page.locator("h1")).to_have_text("permute")
        assert tab.page.url == f"{url}/jobs/{job}?from=0"
        for name in ("Now", "Jobs", "Board", "Kernels"):
            tab.page.locator("header").get_by_role("link", name=name, exact=True).click()
            expect(tab.page.locator("nav a[aria-current]")).to_have_text(name)
        tab.page.goto(f"{url}/jobs/{job}/cases/0")
        expect(tab.page.locator("#rounds[data-drawn]")).to_be_attached()
        tab.page.locator("header").get_by_role("link", name="API", exact=True).click()
        expect(tab.page.locator(".opblock").first).to_be_visible()
        tab.page.get_by_role("button", name="Log out", exact=True).click()
        expect(tab.page.get_by_label("API key")).to_be_visible()
        tab.page.goto(f"{url}/jobs")
        expect(tab.page.get_by_label("API key")).to_be_visible()

        assert tab.faults == []
        assert {urlsplit(asked).path.startswith(f"{PREFIX}/") for asked in tab.asked} == {True}


def test_a_wrong_key_is_said_on_the_page_to_log_in(tmp_path: Path) -> None:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path)})
    database.key("alice")

    with (
        running_server({**database.settings, "WARPCALL_ARENA_BYTES": "16MiB"}) as server,
        chromium() as browser,
        opened(browser) as tab,
    ):
        tab.page.goto(server.url)
        tab.page.get_by_label("API key").fill("wc_nobody_knows")
        tab.page.get_by_role("button", name="Log in").click()

        expect(tab.page.get_by_role("alert")).to_contain_text("not a key of this server")
        assert "wc_nobody_knows" not in tab.page.content()
