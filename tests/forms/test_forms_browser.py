"""Forms in a real browser: what scripts must leave alone, and what works without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.forms.conftest import FormsLab
from tests.forms.fields import new_word
from tests.pages.browsers import WAIT_MS, chromium, needs_chromium, opened
from tests.service.compile_reports.sources import TUNED
from tests.service.job_requests import ended, submit
from tests.service.uploads.sources import SHORT

PixelArray = npt.NDArray[np.uint8]
pytestmark = [needs_chromium, pytest.mark.slow]
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
def test_a_monitor_is_added_and_removed_by_keyboard(
    lab: FormsLab, chrome: Browser, scripts: bool
) -> None:
    job = ended(lab.bench, submit(lab.bench, note=new_word()))
    with opened(chrome, java_script_enabled=scripts) as tab:
        page = tab.page
        log_in(page, lab, "bench", f"/jobs/{job['id']}")
        page.get_by_role("link", name="Repeat it regularly").press("Enter")
        page.get_by_label("Repeat every").select_option("1 day")
        page.get_by_label("URL to call").fill("https://10.0.0.1/")
        page.get_by_label("URL to call").press("Enter")
        expect(page.locator("#notify-error")).to_contain_text(
            "must be at https://example.org, which the operator"
        )
        expect(page.get_by_label("Repeat every")).to_have_value("1 day")
        page.get_by_label("URL to call").fill("https://example.org/hook")
        page.get_by_label("URL to call").press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator(".secret")).to_have_text(re.compile(r"^[0-9a-f]{64}$"))
        page.get_by_role("link", name="Go to the monitor").press("Enter")
        expect(page.locator(".facts").first).to_contain_text("every 24 h")
        for button, state in (("Pause", "paused"), ("Resume", "active")):
            page.get_by_role("button", name=button).press("Enter")
            expect(page.locator(".badge")).to_have_text(state)
        name = page.url.rpartition("/")[2]
        page.get_by_role("button", name="Remove this monitor").press("Enter")

        expect(page.locator("h1")).to_have_text("My monitors")
        expect(page.get_by_role("link", name=name)).to_have_count(0)
        assert all("422" in fault for fault in tab.faults)  # of the form with the error
        assert all(url.startswith(lab.server.url) for url in tab.asked)


@pytest.mark.parametrize(("scripts", "width"), [(True, 400), (False, 1280)])
def test_two_versions_are_compiled_and_compared(
    lab: FormsLab, chrome: Browser, scripts: bool, width: int
) -> None:
    name = new_word()
    for source in (TUNED, TUNED.replace("mask=inside)", "mask=inside) + 1.0", 1)):
        given = {"op": "permute", "source": source, "name": name}
        assert lab.upload.post("/v1/implementations", json=given).status_code == 201
    details = lab.upload.get("/v1/implementations").json()["implementations"]
    full = next(one["name"] for one in details if one["name"].endswith(f"/{name}"))
    window: Any = {"viewport": {"width": width, "height": 800}}
    with opened(chrome, java_script_enabled=scripts, **window) as tab:
        page = tab.page
        log_in(page, lab, "bench", f"/compiled?implementation={full}")
        page.get_by_label("Shape of x").fill("64x256")
        page.get_by_label("Dtype").select_option("F32")
        page.get_by_label("dims", exact=True).fill("1,0")
        page.get_by_role("button", name="Compile").press("Enter")
        expect(page.get_by_role("region", name="Source")).to_contain_text("def _copy(x_ptr")
        page.get_by_text("The whole file").press("Enter")
        expect(page.get_by_text("def permute(x, dims)")).to_be_visible()
        page.get_by_label("Compare with").select_option(index=2)  # after none and warpcall
        page.get_by_role("button", name="Compile").press("Enter")
        expect(page.locator("pre.diff .added").first).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth") if scripts else width
        page.get_by_role("link", name="what changed in the source").press("Enter")
        expect(page.locator("pre.diff .added")).to_contain_text("+ 1.0")

        assert wide <= width
        assert tab.faults == []
        assert all(url.startswith(lab.server.url) for url in tab.asked)


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

        expect(page.locator(".badge", has_text="succeeded")).to_be_visible()
        expect(page.locator("tr.case")).to_have_count(1)
        expect(page.get_by_role("button", name="Measure again")).to_be_visible()
        assert tab.faults == []


def pixels(mode: str) -> PixelArray:
    """A picture in which no two rows, columns or channels are alike."""
    channels = len(mode)
    values = np.arange(9 * 12 * channels, dtype=np.uint32).reshape(9, 12, channels) * 7 % 251
    if mode == "RGBA":
        values[..., 3] = 255  # a canvas loses colours under transparency
        values[0, 0] = 0
    return values.astype(np.uint8)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_picture_is_sent_as_bytes_and_the_answer_drawn(
    lab: FormsLab, chrome: Browser, tmp_path: Path, mode: str
) -> None:
    given, file = pixels(mode), tmp_path / "photo.png"
    Image.fromarray(given).save(file)
    with opened(chrome) as tab:
        page = tab.page
        log_in(page, lab, "call", "/call?op=permute")
        page.get_by_label("x: a file").set_input_files(file)
        expect(page.locator("[data-picture]")).to_contain_text("photo.png is sent")
        page.get_by_label("dims").fill("2,0,1")
        page.get_by_role("button", name="Call permute").click()
        expect(page.get_by_role("img", name="out as a picture")).to_be_visible()
        with page.expect_download() as array:
            page.get_by_role("link", name=".npy").click()
        with page.expect_download() as picture:
            page.get_by_role("link", name=".png").click()
        sent = np.load(array.value.path())
        drawn = np.asarray(Image.open(picture.value.path()))

        assert np.array_equal(sent, given.transpose(2, 0, 1))
        assert np.array_equal(drawn[..., : len(mode)], given)
        assert tab.faults == []


def test_a_file_that_is_no_picture_is_not_sent(
    lab: FormsLab, chrome: Browser, tmp_path: Path
) -> None:
    text, large = tmp_path / "text.png", tmp_path / "large.png"
    sent: list[str] = []
    text.write_text("<b>no picture</b>")
    Image.new("1", (2000, 2000)).save(large)  # 3 bytes a pixel are more than the form may have
    with opened(chrome) as tab:
        page = tab.page
        log_in(page, lab, "call", "/call?op=permute")
        page.on("request", lambda request: sent.append(request.method))
        for file, why in ((text, "cannot read text.png"), (large, "2000 × 2000 pixels")):
            page.get_by_label("x: a file").set_input_files(file)
            expect(page.locator("[data-picture]")).to_contain_text(why)
            page.get_by_role("button", name="Call permute").click()

        expect(page.locator("#answer")).to_have_count(0)
        assert "POST" not in sent
        assert tab.faults == []


@pytest.mark.parametrize("scripts", [True, False])
def test_a_guest_opens_a_link_in_a_fresh_browser_until_it_is_revoked(
    lab: FormsLab, chrome: Browser, scripts: bool
) -> None:
    job = str(submit(lab.browsers["other"], fresh=True)["id"])

    with (
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
