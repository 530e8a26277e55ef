"""A trace on the page of its case in a real browser: its table, and the tab of a viewer that gets it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.servers import Server, running_server
from tests.service.job_requests import BRIEF, client, ended, submit

pytestmark = [needs_chromium, pytest.mark.slow]

# What a viewer does of Perfetto's protocol: it answers PING, and takes one message with a trace.
VIEWER = b"""<!doctype html><title>empty</title><script>
window.addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else if (event.data.perfetto) {
    const { buffer, title, fileName } = event.data.perfetto;
    const trace = JSON.parse(new TextDecoder().decode(buffer));
    document.title = `${trace.traceEvents.length > 0} ${fileName} ${title}`;
  }
});
</script>"""


class _Viewer(BaseHTTPRequestHandler):
    answers = VIEWER

    def do_GET(self) -> None:  # as the base class names it
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(self.answers)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def viewer() -> Iterator[str]:
    """The URL of a viewer."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Viewer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(viewer: str) -> Iterator[Server]:
    with running_server(
        {"WARPCALL_DEVICES": "cpu", "WARPCALL_TRACE_VIEWER": viewer, **BRIEF}
    ) as it:
        yield it


@pytest.fixture(scope="module")
def case(server: Server) -> str:
    """The path of a case with a trace."""
    with client(server) as http:
        job = ended(http, submit(http, implementations=["torch"], profile="torch"))
    return f"/jobs/{job['id']}/cases/0"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def test_a_button_hands_the_trace_over_to_the_viewer(
    server: Server, browser: Browser, case: str
) -> None:
    with opened(browser) as seen:
        seen.page.goto(f"{server.url}{case}")
        expect(seen.page.locator("table.top-kernels")).to_contain_text("aten::")
        with seen.page.expect_popup(timeout=WAIT_MS) as popup:
            seen.page.get_by_role("button", name="Open the trace in Perfetto").click()
        expect(popup.value).to_have_title(
            re.compile(r"^true case-0\.0-torch\.trace\.json torch, x=F32"), timeout=WAIT_MS
        )

    assert seen.faults == []
    assert all(url.startswith(server.url) for url in seen.asked), (
        "the page asked others for nothing"
    )


def test_without_scripts_there_is_the_file(server: Server, browser: Browser, case: str) -> None:
    with opened(browser, java_script_enabled=False) as seen:
        seen.page.goto(f"{server.url}{case}")
        expect(seen.page.locator("button[data-trace]")).to_be_hidden()
        expect(seen.page.get_by_role("link", name="case-0.0-torch.trace.json")).to_be_visible()


def test_only_a_page_with_a_trace_may_speak_with_tabs_that_it_opens(
    server: Server, viewer: str, case: str
) -> None:
    html = {"accept": "text/html"}
    with client(server) as http:
        with_trace = http.get(case, headers=html)
        plain = ended(http, submit(http, implementations=["torch"], fresh=True))
        without = http.get(f"/jobs/{plain['id']}/cases/0", headers=html)

    policy = "content-security-policy"
    assert with_trace.headers[policy] == without.headers[policy]
    assert viewer not in with_trace.headers[policy]
    assert _opener(with_trace) == "same-origin-allow-popups"
    assert _opener(without) == "same-origin"
    assert "traces.js" not in without.text


def _opener(page: httpx.Response) -> str:
    return page.headers["cross-origin-opener-policy"]
