"""A real browser for tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
# A developer may lack Chromium. Where REQUIRE_CHROMIUM is set, its absence is a failure.
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("REQUIRE_CHROMIUM"),
    reason="Chromium is not installed, so no page is drawn: apt install chromium",
)
WAIT_MS = 60_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, without a window."""
    with sync_playwright() as playwright:
        # Its own sandbox needs rights that containers rarely have; it only sees our pages.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, with what was wrong in it and all that it asked for.

    Attributes:
        faults: errors of scripts, and what the policy of the page forbade.
        asked: URLs of all requests.
    """

    page: Page
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Opened]:
    """An empty page in a context of its own; `options` are those of the context."""
    context = browser.new_context(**options)
    found = Opened(context.new_page())
    found.page.set_default_timeout(WAIT_MS)
    found.page.on("pageerror", lambda error: found.faults.append(str(error)))
    found.page.on(
        "console",
        lambda message: found.faults.append(message.text) if message.type == "error" else None,
    )
    found.page.on("request", lambda request: found.asked.append(request.url))
    yield found
    context.close()
