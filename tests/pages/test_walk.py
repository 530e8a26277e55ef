"""A user's way through the pages in a real browser, from a wrong key to the log-out everywhere.

And what a person without a key sees who follows a share link.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.pages.conftest import SharedLab

pytestmark = needs_chromium
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.slow
def test_a_guest_sees_the_rounds_drawn(shared_lab: SharedLab, browser: Browser) -> None:
    _, path = shared_lab.share("done")

    with opened(browser) as tab:
        tab.page.goto(shared_lab.server.url + path)
        tab.page.locator("tr.case a").first.click()

        expect(tab.page.locator("#rounds[data-drawn] .uplot")).to_have_count(6)
        assert tab.faults == []


def log_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()


@pytest.mark.slow
@pytest.mark.parametrize("scripts", [True, False])
def test_a_user_logs_in_reads_all_and_logs_out_everywhere(
    shared_lab: SharedLab, browser: Browser, scripts: bool
) -> None:
    jobs, url = shared_lab.jobs, shared_lab.server.url
    with (
        opened(browser, java_script_enabled=scripts) as tab,
        opened(browser) as other,
    ):
        page, main = tab.page, tab.page.locator("main")
        page.goto(url)
        log_in(page, "wc_00000000_wrong")
        expect(page.get_by_role("alert")).to_contain_text("key")
        log_in(page, shared_lab.key)
        expect(page.locator("h1")).to_have_text("Now")
        other.page.goto(f"{url}/jobs")
        log_in(other.page, shared_lab.key)
        expect(other.page.locator("h1")).to_have_text("Jobs")

        page.get_by_role("link", name="Jobs", exact=True).click()
        page.locator(f"a[href$='jobs/{jobs['done']}']").first.click()
        expect(main).to_contain_text("as fast as warpcall in 8 of 8 cases")
        expect(page.get_by_label("Compare with another job")).to_be_hidden()
        page.get_by_role("heading", name="Details").click()
        page.get_by_label("Compare with another job").fill(jobs["earlier"])
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("h1")).to_have_text("permute: two jobs")
        expect(main).to_contain_text("575.57.08")
        page.goto(f"{url}/jobs/{jobs['done']}/cases/0")
        page.get_by_role("link", name="history").first.click()
        expect(main).to_contain_text("measurements")
        expect(page.locator("svg.chart")).to_be_visible()
        page.get_by_role("link", name="Board", exact=True).click()
        expect(page.locator("h1")).to_contain_text("permute on")
        expect(main).to_contain_text("leads alone")
        page.get_by_role("link", name="Kernels", exact=True).click()
        page.get_by_role("link", name="permute", exact=True).first.click()
        expect(main).to_contain_text("Exact: bits are moved.")
        page.get_by_role("link", name="ann/tiles").first.click()
        page.get_by_role("link", name="what changed").first.click()
        expect(page.locator(".added")).to_have_count(1)

        page.get_by_role("link", name="alice", exact=True).click()
        expect(page.locator("tr.mine")).to_have_count(1)
        expect(main.locator("tbody tr").filter(has_text="wc_")).to_have_count(2)
        expect(main.locator("table.quotas tbody tr").first).to_be_visible()
        page.get_by_role("button", name="Log out everywhere").click()
        expect(page.get_by_label("API key")).to_be_visible()
        for one in (page, other.page):
            one.goto(f"{url}/jobs")
            expect(one.get_by_label("API key")).to_be_visible()

        assert tab.faults + other.faults == []
