"""Forms in a real browser: what scripts must leave alone, and what works without them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.forms.conftest import FormsLab, new_word
from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.service.uploads.sources import SHORT

pytestmark = needs_chromium
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def log_in(page: Page, lab: FormsLab, name: str, path: str) -> None:
    page.goto(lab.server.url + path)
    page.get_by_label("API key").fill(lab.keys[name])
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(lab.server.url + path)


@pytest.mark.parametrize("scripts", [True, False])
def test_an_administrator_works_in_a_browser(lab: FormsLab, chrome: Browser, scripts: bool) -> None:
    name = new_word()
    with opened(chrome, java_script_enabled=scripts) as tab:
        page = tab.page
        log_in(page, lab, "admin", "/admin")
        page.get_by_label("Name of a new user").fill(name)
        page.get_by_role("button", name="Add the user").click()
        page.get_by_label("New key of").select_option(name)
        page.get_by_label("role").select_option("bench")
        page.get_by_label("valid for").select_option("never")
        page.get_by_role("button", name="Create the key").click()
        expect(page.locator(".secret")).to_have_text(re.compile(r"wc_[0-9a-f]{8}_"))
        key_id = (page.locator(".secret").text_content() or "")[:11]
        page.get_by_role("link", name="Back to all keys").click()
        page.get_by_role("button", name=f"Revoke {key_id}").click()

        expect(page.get_by_role("button", name=f"Revoke {key_id}")).to_have_count(0)
        assert [one["state"] for one in lab.database.listed("keys", "list", "--user", name)] == [
            "revoked"
        ]
        assert tab.faults == []


def test_a_file_is_uploaded_and_its_job_watched_to_the_end(lab: FormsLab, chrome: Browser) -> None:
    name = new_word()
    with opened(chrome) as tab:
        page = tab.page
        log_in(page, lab, "upload", "/upload")
        page.get_by_label("File").set_input_files(
            {"name": f"{name}.py", "mimeType": "text/x-python", "buffer": SHORT.encode()}
        )
        page.get_by_role("button", name="Upload and benchmark").click()
        expect(page.get_by_label(f"time upload/{name}", exact=True)).to_be_checked()
        page.get_by_label("Shapes of x").fill("8x4")
        page.get_by_label("dims", exact=True).fill("1,0")
        page.get_by_label("quick").check()
        page.get_by_role("button", name="Submit").click()

        expect(page.locator(".badge.succeeded")).to_be_visible()
        expect(page.locator("tr.case")).to_have_count(1)
        expect(page.get_by_role("button", name="Measure again")).to_be_visible()
        assert tab.faults == []
