"""A share link in browsers: its owner makes and revokes it, and a guest opens it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.forms.conftest import FormsLab
from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.service.job_requests import submit

pytestmark = pytest.mark.slow


@needs_chromium
@pytest.mark.parametrize("scripts", [True, False])
def test_a_guest_opens_a_link_in_a_fresh_browser_until_it_is_revoked(
    lab: FormsLab, scripts: bool
) -> None:
    expect.set_options(timeout=WAIT_MS)
    job = str(submit(lab.browsers["other"], fresh=True)["id"])

    with (
        chromium() as chrome,
        opened(chrome, java_script_enabled=scripts) as own,
        opened(chrome, java_script_enabled=scripts) as fresh,
    ):
        own.page.goto(f"{lab.server.url}/jobs/{job}")
        own.page.get_by_label("API key").fill(lab.keys["other"])
        own.page.get_by_role("button", name="Log in").click()
        own.page.get_by_role("link", name="Share", exact=True).click()  # which opens that part
        own.page.get_by_label("Expires after").select_option("1 day")
        own.page.get_by_role("button", name="Make a share link").click()
        expect(own.page.locator(".secret a")).to_have_text(re.compile(r"^http.*/share/sh_"))
        address = own.page.locator(".secret a").text_content() or ""

        fresh.page.goto(address)
        expect(fresh.page.locator("h1")).to_have_text("permute")
        expect(fresh.page.locator("form")).to_have_count(0)
        own.page.reload()
        expect(own.page.locator(".secret a")).to_have_count(0)
        own.page.get_by_role("button", name="Revoke the link").click()
        expect(own.page.get_by_role("button", name="Revoke the link")).to_have_count(0)

        gone = fresh.page.goto(address)
        assert gone is not None
        assert gone.status == 404
        expect(fresh.page.locator("main")).to_contain_text("was revoked")
        assert own.faults == []
