"""What a person without a key sees in a browser who follows a share link."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.pages.conftest import SharedLab


@needs_chromium
def test_a_guest_sees_the_rounds_drawn(shared_lab: SharedLab) -> None:
    _, path = shared_lab.share("done")

    with chromium() as browser, opened(browser) as tab:
        expect.set_options(timeout=WAIT_MS)
        tab.page.goto(shared_lab.server.url + path)
        tab.page.locator("tr.case a").first.click()

        expect(tab.page.locator("#rounds[data-drawn] .uplot")).to_have_count(6)
        assert tab.faults == []
