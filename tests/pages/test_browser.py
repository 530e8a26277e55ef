"""The pages in a real browser: scripts under the strict policy, live jobs, and small windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.pages.conftest import Lab
from tests.servers import Server, running_server
from tests.service.job_requests import BRIEF, client, submit

pytestmark = [needs_chromium, pytest.mark.slow]
expect.set_options(timeout=WAIT_MS)

# The lowest contrast of a text with what is behind it, by the formula of WCAG 2; level AA is 4.5.
CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const known = new Map();
  const rgb = (colour) => {
    if (!known.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      known.set(colour, [...canvas.getImageData(0, 0, 1, 1).data]);
    }
    return known.get(colour);
  };
  const light = ([r, g, b]) => [r, g, b]
    .map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  let found = [99, ""];
  for (const element of document.querySelectorAll("body *:not(svg, svg *, .swagger *)")) {
    const texts = [...element.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
    if (!texts.length || !element.getClientRects().length) continue;
    let behind = element;
    while (behind && rgb(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const back = light(rgb(behind ? getComputedStyle(behind).backgroundColor : "white"));
    const text = light(rgb(getComputedStyle(element).color));
    const ratio = (Math.max(back, text) + 0.05) / (Math.min(back, text) + 0.05);
    if (ratio < found[0]) found = [ratio, texts[0].data.trim() + " in " + element.className];
  }
  return found;
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def live_server() -> Iterator[Server]:
    """A server that runs jobs, which are brief."""
    with running_server({"WARPCALL_ARENA_BYTES": "16MiB", **BRIEF}) as server:
        yield server


WIDTHS = (400, 1280)
DRAWN = "#rounds"  # what a script draws in the width that it finds when the page is loaded
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
# Tables and forms that no reader has to unfold; the legends are those of plots, which scripts draw.
PARTS = ("main table:not(.u-legend):not(details *)", "main form:not(details *)")
CONTENT = "main :is(table, form, dl, a):visible"
# As if all jobs were old: the text of the time since then is the longest.
LATER = """
() => document.querySelectorAll("time").forEach((time) => {
  time.textContent = time.textContent.replace(/^.* ago$/, "100 days ago");
})
"""


@dataclass(frozen=True)
class Visit:
    """All pages, each loaded once in a narrow window, which is then widened, and once without scripts.

    Attributes:
        wide: by address and width of the window, the width of the page.
        parts: by address, the number of tables and forms, visible or not.
        parts_without_scripts: the number of those that are visible without scripts.
        contrasts: by address, width and colour scheme, the lowest contrast and where it is.
        faults, asked: as in `Opened`.
    """

    wide: dict[tuple[str, int], int]
    parts: dict[str, list[int]]
    parts_without_scripts: dict[str, list[int]]
    contrasts: dict[tuple[str, int, str], tuple[float, str]]
    faults: list[str]
    asked: list[str]


@pytest.fixture(scope="module")
def visit(pages_lab: Lab, browser: Browser) -> Visit:
    with opened(browser) as tab, opened(browser, java_script_enabled=False) as plain:
        found = Visit({}, {}, {}, {}, tab.faults, tab.asked)
        for path in pages_lab.paths:
            url = pages_lab.server.url + path
            for width in WIDTHS:
                tab.page.set_viewport_size({"width": width, "height": 800})
                if width == WIDTHS[0] or tab.page.locator(DRAWN).count():
                    tab.page.goto(url)
                    tab.page.evaluate(LATER)
                found.wide[path, width] = tab.page.evaluate("document.documentElement.scrollWidth")
                for scheme in SCHEMES:
                    tab.page.emulate_media(color_scheme=scheme)
                    contrast, where = tab.page.evaluate(CONTRAST)
                    found.contrasts[path, width, scheme] = contrast, where
            plain.page.goto(url)  # at once, since the pages of a server that runs change
            expect(plain.page.locator(CONTENT)).not_to_have_count(0)
            found.parts[path], found.parts_without_scripts[path] = (
                [one.page.locator(part + shown).count() for part in PARTS]
                for one, shown in ((tab, ""), (plain, ":visible"))
            )
        tab.page.goto(f"{pages_lab.server.url}/docs")
        expect(tab.page.locator(".opblock").first).to_be_visible()
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_its_window(visit: Visit, width: int, pages_lab: Lab) -> None:
    wide = {path: visit.wide[path, width] for path in pages_lab.paths}

    assert {path: found for path, found in wide.items() if found > width} == {}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_page_can_be_read(visit: Visit, scheme: str, width: int, pages_lab: Lab) -> None:
    contrasts = {path: visit.contrasts[path, width, scheme] for path in pages_lab.paths}

    assert {path: pair for path, pair in contrasts.items() if pair[0] < 4.5} == {}


def test_no_page_asks_another_host_or_breaks_its_policy(visit: Visit, pages_lab: Lab) -> None:
    assert visit.faults == []
    assert len(visit.asked) > len(pages_lab.paths)
    assert all(url.startswith(pages_lab.server.url) for url in visit.asked)


def test_every_page_has_its_tables_and_forms_without_scripts(visit: Visit, pages_lab: Lab) -> None:
    assert set(visit.parts) == set(pages_lab.paths)
    assert visit.parts_without_scripts == visit.parts


def test_a_job_is_seen_live_from_the_queue_to_its_results(
    live_server: Server, browser: Browser
) -> None:
    with client(live_server) as http, opened(browser) as tab:
        cases = [{"shape": [n, 8], "dtype": "F32", "params": {"dims": [1, 0]}} for n in (8, 9, 10)]
        job = submit(http, implementations=["warpcall", "torch"], cases=cases)
        tab.page.goto(f"{live_server.url}/jobs/{job['id']}")
        tab.page.evaluate("window.notReloaded = true")

        expect(tab.page.locator(".badge", has_text="succeeded")).to_be_visible()

        expect(tab.page.locator("tr.case")).to_have_count(3)
        assert tab.page.evaluate("window.notReloaded")
        assert tab.faults == []
        assert sum("/events" in url for url in tab.asked) == 1
        expect(tab.page.locator("[data-events]")).to_have_count(0)
        tab.page.goto(live_server.url)
        expect(tab.page.locator("svg.hour rect.blocks").first).to_be_attached()


@pytest.mark.parametrize("scripts", [True, False])
def test_a_job_is_submitted_from_the_form_after_a_preview(
    live_server: Server, browser: Browser, scripts: bool
) -> None:
    with opened(browser, java_script_enabled=scripts) as tab:
        tab.page.goto(live_server.url)
        tab.page.get_by_role("link", name="New job").click()
        tab.page.get_by_role("link", name="permute", exact=True).click()
        tab.page.get_by_label("Shapes of x").fill("8x4 4x")
        tab.page.get_by_label("dims", exact=True).fill("1,0")
        tab.page.get_by_label("quick").check()
        tab.page.get_by_role("button", name="Preview").click()
        expect(tab.page.locator("#shape-error")).to_contain_text("got '4x'")
        tab.page.get_by_label("Shapes of x").fill("8x4 4x8")
        tab.page.get_by_role("button", name="Preview").click()
        expect(tab.page.locator("#preview")).to_contain_text("2 cases")
        tab.page.get_by_role("button", name="Submit").click()

        expect(tab.page.locator("h1")).to_have_text("permute")
        expect(tab.page.locator(".badge", has_text="succeeded")).to_be_visible()
        expect(tab.page.locator("tr.case")).to_have_count(2)
        assert all("422" in fault for fault in tab.faults)  # of the form with the error


def test_a_preview_stands_beside_the_form_and_is_seen_at_once(
    live_server: Server, browser: Browser
) -> None:
    with opened(browser, viewport={"width": 1280, "height": 800}) as tab:
        tab.page.goto(f"{live_server.url}/new?op=permute")
        expect(tab.page.get_by_role("button", name="Preview")).to_be_in_viewport()
        tab.page.get_by_label("Shapes of x").fill("8x4 4x8")
        tab.page.get_by_label("dims", exact=True).fill("1,0")
        tab.page.get_by_role("button", name="Preview").click()
        expect(tab.page.locator("#preview .lead")).to_be_in_viewport()
        expect(tab.page.get_by_role("button", name="Submit")).to_be_in_viewport()
        form = tab.page.locator("form fieldset").first.bounding_box()
        preview = tab.page.locator("#preview").bounding_box()

        assert form is not None
        assert preview is not None
        assert preview["x"] >= form["x"] + form["width"]
        tab.page.set_viewport_size({"width": 400, "height": 800})
        expect(tab.page.locator("#preview .lead")).to_be_visible()


def test_what_was_asked_for_stands_on_the_first_screen(pages_lab: Lab, browser: Browser) -> None:
    with opened(browser, viewport={"width": 1280, "height": 800}) as tab:
        for job in (pages_lab.done, pages_lab.many):
            tab.page.goto(f"{pages_lab.server.url}/jobs/{job}")
            for part in (".lead, .wrong", ".answers td.num b", ".answers td:last-child"):
                box = tab.page.locator(part).first.bounding_box()
                assert box is not None
                assert box["y"] + box["height"] < 800, (job, part)


def test_the_first_page_follows_the_queue(live_server: Server, browser: Browser) -> None:
    with client(live_server) as http, opened(browser) as tab:
        tab.page.goto(live_server.url)
        tab.page.evaluate("window.notReloaded = true")
        job = submit(http, fresh=True)

        expect(tab.page.locator(f"table a[href$='{job['id']}']").first).to_be_visible()

        assert tab.page.evaluate("window.notReloaded")
        assert tab.faults == []


def test_a_time_is_shown_in_the_zone_of_the_reader(pages_lab: Lab, browser: Browser) -> None:
    with opened(browser, timezone_id="Asia/Tokyo", locale="de-DE") as tab:
        tab.page.goto(pages_lab.server.url + "/jobs")
        time = tab.page.locator("time:visible").first
        before = time.get_attribute("title")
        time.hover()
        expect(time).to_have_attribute("title", re.compile(r"^\d+\.\d+\.\d{4}, \d\d:\d\d:\d\d$"))
        shown = time.get_attribute("title")

    assert before is not None
    assert shown is not None
    moment = datetime.fromisoformat(before).astimezone(ZoneInfo("Asia/Tokyo"))
    assert shown == f"{moment.day}.{moment.month}.{moment.year}, {moment:%H:%M:%S}"


def test_everything_is_there_without_scripts(pages_lab: Lab, browser: Browser) -> None:
    with opened(browser, java_script_enabled=False) as tab:
        tab.page.goto(f"{pages_lab.server.url}/jobs/{pages_lab.done}")

        expect(tab.page.locator("tr.case")).to_have_count(8)
        expect(tab.page.locator(".lead")).to_contain_text("as fast as warpcall")
        tab.page.locator("nav").get_by_role("link", name="Jobs").click()
        tab.page.select_option("#state", "failed")
        tab.page.get_by_role("button", name="Filter").click()
        expect(tab.page.locator("tbody tr")).to_have_count(1)
        tab.page.locator("tbody a").first.click()
        expect(tab.page.locator(".badge.failed")).to_be_visible()


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_list_is_filtered_and_sorted_and_its_address_keeps_both(
    pages_lab: Lab, browser: Browser, scripts: bool
) -> None:
    with opened(browser, java_script_enabled=scripts) as tab:
        rows = tab.page.locator("#list tbody tr")
        tab.page.goto(f"{pages_lab.server.url}/jobs")
        expect(rows).not_to_have_count(1)
        tab.page.get_by_label("name, note, case").press_sequentially("625x625")
        if not scripts:
            tab.page.get_by_role("button", name="Filter").click()

        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("47 more")
        expect(tab.page).to_have_url(re.compile("find=625x625"))
        tab.page.get_by_label("name, note, case").fill("warpcall")
        if not scripts:
            tab.page.get_by_role("button", name="Filter").click()
        expect(rows).not_to_have_count(1)
        tab.page.get_by_role("link", name="user", exact=True).click()
        expect(tab.page.locator("th[aria-sort=ascending]")).to_have_text("user")
        expect(rows.first).to_contain_text("alice")
        tab.page.reload()
        expect(tab.page.get_by_label("name, note, case")).to_have_value("warpcall")
        expect(rows.first).to_contain_text("alice")
        assert tab.faults == []


def test_a_table_is_filtered_as_one_types_without_another_page(
    pages_lab: Lab, browser: Browser
) -> None:
    with opened(browser) as tab:
        tab.page.goto(f"{pages_lab.server.url}/admin")
        tab.page.evaluate("window.notReloaded = true")
        tab.page.get_by_label("Filter quotas").press_sequentially("bytes")
        rows = tab.page.locator("#list-quotas tbody tr")

        expect(rows.filter(has_not_text="BYTES")).to_have_count(0)
        expect(rows).not_to_have_count(0)
        tab.page.get_by_label("Filter quotas").press_sequentially(" zzz")
        expect(rows.filter(has_text="Nothing has “bytes zzz” in it. All")).to_have_count(1)
        assert tab.page.evaluate("window.notReloaded")
        assert tab.faults == []


@pytest.mark.parametrize("clipboard", [True, False], ids=["with a clipboard", "over plain HTTP"])
def test_a_command_is_copied_by_its_button(
    pages_lab: Lab, browser: Browser, clipboard: bool
) -> None:
    with opened(browser, permissions=["clipboard-write"]) as tab:
        if not clipboard:  # as on pages of other machines over plain HTTP
            tab.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: null})")
        tab.page.goto(f"{pages_lab.server.url}/start")
        wanted = tab.page.locator(".command code").nth(1).text_content()
        tab.page.get_by_role("button", name="Copy").nth(1).click()
        expect(tab.page.get_by_role("button", name="Copied")).to_have_count(1)
        tab.page.goto(f"{pages_lab.server.url}/guide")
        tab.page.get_by_label("Search the guide").focus()
        tab.page.keyboard.press("Control+V")

        expect(tab.page.get_by_label("Search the guide")).to_have_value(wanted or "")
        assert tab.faults == []


def test_a_page_is_used_by_keyboard_alone(pages_lab: Lab, browser: Browser) -> None:
    with opened(browser) as tab:
        tab.page.goto(f"{pages_lab.server.url}/jobs")
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the content"
        tab.page.keyboard.press("Enter")
        for _ in range(
            20
        ):  # two links, eight fields, of which dates have several parts, the button
            tab.page.keyboard.press("Tab")
            if tab.page.evaluate("document.activeElement.tagName") == "BUTTON":
                break
        assert tab.page.evaluate("document.activeElement.textContent") == "Filter"
        for _ in range(6):  # five heads that sort, and the first job
            tab.page.keyboard.press("Tab")
        tab.page.keyboard.press("Enter")

        expect(tab.page.locator("h1")).to_have_text("permute")


def test_the_rounds_of_a_case_are_drawn_with_the_masked_ones(
    pages_lab: Lab, browser: Browser
) -> None:
    with opened(browser) as tab:
        tab.page.goto(f"{pages_lab.server.url}/jobs/{pages_lab.done}/cases/1")

        expect(tab.page.locator("#rounds[data-drawn] .uplot")).to_have_count(6)
        plot = tab.page.locator(".uplot .u-over").first
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        tab.page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + box["height"] / 2)
        legends = tab.page.locator(".u-legend .u-series:first-child .u-value")
        expect(legends.nth(0)).to_contain_text("masked: thermal slowdown")
        expect(legends.nth(1)).to_contain_text("masked: thermal slowdown")  # one cursor for all
        clock, power = (tab.page.locator(".uplot").nth(place) for place in (3, 4))
        expect(clock.locator(".u-series:last-child .u-value")).to_have_text("1980 MHz")
        expect(power.locator(".u-series:last-child .u-value")).to_contain_text(" W")
        expect(tab.page.locator("#zoom")).to_contain_text("Drag across a plot to zoom in")

        def round_at(share: float) -> int:
            tab.page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
            return int((legends.nth(0).text_content() or "").partition(",")[0])

        whole = round_at(0.02)
        round_at(0.5)
        tab.page.mouse.down()
        round_at(0.8)
        tab.page.mouse.up()
        assert round_at(0.02) > round_at(0.98) / 2 > whole
        tab.page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert round_at(0.02) == whole
        assert tab.faults == []


RATIOS = (
    *((0.144, 1.2), (0.0144, 0.9), (1.4985, 9.0), (0.15, 0.6)),  # the first scale begins at 0.096
    *((14.9, 800.0), (1e-6, 1e6), (0.9999, 1.0001), (1.0, 1.0), (3e-9, 3e-9)),
)


def test_rounds_of_any_ratio_are_drawn(pages_lab: Lab, browser: Browser) -> None:
    """The scale is logarithmic where ratios differ much; its ticks once had no end."""
    asked = iter(RATIOS)

    def spread(route: Route) -> None:
        details = route.fetch().json()
        first, *others = details["samples_us"]
        rounds = len(details["samples_us"][first])
        details["samples_us"][first] = [10.0] * rounds
        ratios = [float(ratio) for ratio in np.geomspace(*next(asked), rounds)]
        for name in others:
            details["samples_us"][name] = [10.0 * ratio for ratio in ratios]
        route.fulfill(json=details)

    with opened(browser) as tab:
        tab.page.route(re.compile(r"/v1/jobs/[^/]+/cases/1$"), spread)
        for low, high in RATIOS:
            tab.page.goto(f"{pages_lab.server.url}/jobs/{pages_lab.done}/cases/1")

            plots = tab.page.locator("#rounds[data-drawn] .uplot")
            expect(plots, f"ratios from {low} to {high}").to_have_count(6)
        assert tab.faults == []
        assert list(asked) == []
