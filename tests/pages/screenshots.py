"""Takes a picture of every web page, at 1280 and 400 pixels, light and dark.

    python -m tests.pages.screenshots FOLDER [--only TEXT] [--data FOLDER]

The server is real. It has the published figures of an H200 (h200.py), jobs that really run on this
machine's CPU, users with keys, and an administrator. It takes some three minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from playwright.sync_api import Browser, Page

import demo.server
from tests.pages import h200
from tests.pages import lab as stored
from tests.pages.browsers import chromium
from tests.service.artefacts.shown import add_profiles
from tests.service.compile_reports.sources import TUNED
from tests.service.databases import Database
from tests.service.job_requests import JOB, Job, client, reached, submit
from tests.service.worker.problem_sources import ROW_NORM
from tests.waiting import until
from warpcall.jobs import UNFINISHED

WIDTHS = (1280, 400)
SCHEMES = ("light", "dark")
DRAWN_MS = 200  # until a browser has drawn what came into its window
TALLEST = 2400  # pixels of a picture
SETTINGS = {
    "WARPCALL_WEBHOOK_HOSTS": "example.org",
    "WARPCALL_ARENA_BYTES": "64MiB",
    "WARPCALL_UPLOADS": "trusted",
    "WARPCALL_USER_RUNNING_JOBS": "1",
}
EXAMPLE = (Path(__file__).parents[2] / "examples/my_permute.py").read_text()
PLAIN = '''"""Permute by torch, as a start."""

import torch


def permute(x, dims):
    """Copies into a new tensor."""
    return x.permute(dims).contiguous()
'''
PREALLOCATED = PLAIN.replace(
    "    return x.permute(dims).contiguous()\n",
    "    y = x.permute(dims)\n    out = torch.empty(y.shape, dtype=x.dtype, device=x.device)\n"
    "    return out.copy_(y)\n",
)
WRONG = PLAIN.replace("x.permute(dims)", "x.permute(dims).flip(0)")
RAISES = PLAIN.replace(
    "    return x.", '    raise RuntimeError("no kernel for this layout yet")\n    return x.'
)
SQUARES = [
    {"shape": [n, n], "dtype": dtype, "params": {"dims": [1, 0]}}
    for dtype, n in (("F32", 128), ("F32", 256), ("F32", 512), ("BF16", 1024))
]
REFUSED = "there is no implementation 'ann/tiles' of this op"
WAIT_S = 300  # for a job


@dataclass(frozen=True)
class Lab:
    """The server, the keys of its users, and the addresses of the pages by name."""

    url: str
    keys: dict[str, str]
    paths: dict[str, str]


@contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """A server with data; a job runs, and others wait, until it is stopped.

    Args:
        folder: for its data. If an earlier run has left some there, they are used again.
    """
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    known = folder / "lab.json"
    if known.exists():
        with demo.server.running_server({**SETTINGS, **database.settings}) as server:
            yield Lab(server.url, **json.loads(known.read_text()))
        return
    with ExitStack() as stack:
        roles: dict[str, Any] = {"ann": "upload", "bob": "upload", "carol": "bench", "dan": "call"}
        keys = {user: database.key(user, role) for user, role in roles.items()}
        keys["root"] = database.key("root", "admin")
        store = database.store()
        published = h200.load(store, "carol")
        steps = stored.monitor(store, "ann", REFUSED, runs=40)
        level = stored.monitor(store, "ann", "", runs=60, after=20)
        stored.add_artefacts(store, folder, published["table"], "it is larger than 64 MiB")
        add_profiles(store, folder, published["table"], 0, "_a_kernel")
        store.close()
        server = stack.enter_context(demo.server.running_server({**SETTINGS, **database.settings}))
        users = {user: stack.enter_context(client(server, key)) for user, key in keys.items()}
        paths = {
            **_published_paths(published),
            **_use(users),
            "monitor-steps": f"/monitors/{steps}",
            "monitor-level": f"/monitors/{level}",
        }
        known.write_text(json.dumps({"keys": keys, "paths": paths}))
        yield Lab(server.url, keys, paths)


def _published_paths(jobs: dict[str, str]) -> dict[str, str]:
    case = quote("permute x=BF16[8192,8192] dims=1,0")
    return {
        "job-h200": f"/jobs/{jobs['table']}",
        "case-h200-table": f"/jobs/{jobs['table']}/cases/0",
        "compare-h200": f"/compare?a={jobs['table']}&b={jobs['permute']}",
        "job-h200-permute": f"/jobs/{jobs['permute']}",
        "job-h200-isin": f"/jobs/{jobs['isin']}",
        "job-h200-conv": f"/jobs/{jobs['conv']}",
        "case-h200": f"/jobs/{jobs['permute']}/cases/0",
        "board-h200": "/board?op=permute&device=NVIDIA+H200",
        "board-h200-case": f"/board?op=permute&device=NVIDIA+H200&case={case}",
        "history-h200": f"/history?op=permute&implementation=warpcall&case={case}",
        "compare-form-h200": f"/compare?a={jobs['permute']}",
    }


def _use(users: dict[str, httpx.Client]) -> dict[str, str]:
    """Upload, submit and share, as users would; the addresses of the pages that show it by name."""
    ann, bob, carol = (users[name] for name in ("ann", "bob", "carol"))
    for source in (PLAIN, PREALLOCATED):
        _post(ann, "/v1/implementations", op="permute", name="tiles", source=source)
    _post(bob, "/v1/implementations", op="permute", name="flipped", source=WRONG)
    _post(bob, "/v1/implementations", op="permute", name="unfinished", source=RAISES)
    _post(bob, "/v1/implementations", op="permute", name="secret", source=EXAMPLE, private=True)
    _post(ann, "/v1/problems", source=ROW_NORM)
    first, second = (
        _ended(ann, submit(ann, fresh=True, cases=SQUARES, tags=["nightly"], implementations=names))
        for names in [["warpcall", "torch", "ann/tiles", "copy"]] * 2
    )
    faulty = submit(
        bob,
        fresh=True,
        cases=SQUARES[:2],
        implementations=["warpcall", "torch", "bob/flipped", "bob/unfinished"],
        note="Does the flip matter?",
    )
    problem = submit(
        ann, op="ann/row-norm", cases=[{"sizes": {"rows": 512}}], implementations=["torch", "copy"]
    )
    private = submit(bob, cases=SQUARES[:1], private=True, note="Not yet for others")
    for http, job in ((bob, faulty), (ann, problem), (bob, private)):
        _ended(http, job)
    long: dict[str, Any] = {
        "cases": SQUARES,
        "precision": "publish",
        "implementations": ["warpcall", "torch"],
    }
    cancelled = submit(carol, **long)
    reached(carol, cancelled, lambda job: job["state"] == "running")
    carol.post(f"/v1/jobs/{cancelled['id']}/cancel").raise_for_status()
    _ended(carol, cancelled)
    profiled = submit(ann, cases=SQUARES[:2], profile="torch")
    _ended(ann, profiled)
    checked = submit(
        ann, cases=SQUARES, implementations=["torch", "ann/tiles"], tags=["regression"], fresh=True
    )
    _ended(ann, checked)
    monitor = _monitor(ann)
    model = str(ann.get("/v1/nodes").json()["nodes"][0]["lanes"][0]["model"])
    gpus = [next(word for word in model.split() if word.isalnum()), "H100"]
    names = ["torch", "ann/tiles", "copy"]
    asked = {**JOB, "cases": SQUARES, "implementations": names, "fresh": True}
    group = ann.post("/v1/groups", json={"gpus": gpus, "job": asked}).json()
    _ended(ann, group["parts"][0]["job"])
    running = submit(ann, fresh=True, **long)
    queued = submit(bob, fresh=True, cases=SQUARES[:3], note="After Ann's long job")
    submit(carol, fresh=True, cases=SQUARES, priority="low")
    reached(ann, running, lambda job: job["state"] == "running")
    share = ann.post(f"/v1/jobs/{second['id']}/shares", json={}).json()["url"]
    both = ann.post(f"/v1/jobs/{first['id']}/shares", json={"other": second["id"]}).json()["url"]
    versions = ann.get("/v1/implementations/ann/tiles").json()["versions"]
    case = quote("permute x=BF16[1024,1024] dims=1,0")
    for source in (TUNED, TUNED.replace("mask=inside)", "mask=inside) + 1.0", 1)):
        _post(ann, "/v1/implementations", op="permute", name="fast", source=source)
    fast = [one["version"] for one in ann.get("/v1/implementations/ann/fast").json()["versions"]]
    compiled = "&shape=1024x1024&dtype=F32&params.dims=1,0&gpu=sm_90"
    return {
        "now": "/",
        "jobs": "/jobs",
        "start": "/start",
        "guide": "/guide",
        "guide-page": "/guide/http-api",
        "guide-search": "/guide?q=several+users",
        "links": "/shares?user=all",
        "jobs-none": "/jobs?user=nobody",
        "new": "/new",
        "new-op": "/new?op=permute",
        "new-like": f"/new?like={second['id']}",
        "job-done": f"/jobs/{second['id']}",
        "job-faulty": f"/jobs/{faulty['id']}",
        "job-problem": f"/jobs/{problem['id']}",
        "job-private": f"/jobs/{private['id']}",
        "job-cancelled": f"/jobs/{cancelled['id']}",
        "job-running": f"/jobs/{running['id']}",
        "job-queued": f"/jobs/{queued['id']}",
        "group": f"/groups/{group['id']}",
        "case": f"/jobs/{second['id']}/cases/3",
        "case-faulty": f"/jobs/{faulty['id']}/cases/0",
        "job-profiles": f"/jobs/{profiled['id']}",
        "job-regression": f"/jobs/{checked['id']}/regression",
        "monitors": "/monitors?user=all",
        "monitors-none": "/monitors",
        "monitor": f"/monitors/{monitor}",
        "new-monitor-job": "/monitors/new",
        "new-monitor": f"/monitors/new?like={second['id']}",
        "new-monitor-case": f"/monitors/new?like={second['id']}&case={case}",
        "compiled": f"/compiled?op=permute{compiled}",
        "compiled-form": "/compiled?op=masked-softmax",
        "compiled-versions": f"/compiled?implementation=ann/fast@{fast[0][:12]}&against=ann/fast@{fast[1][:12]}{compiled}",
        "compare": f"/compare?a={first['id']}&b={second['id']}",
        "compare-form": "/compare",
        "history": f"/history?op=permute&implementation=warpcall&case={case}",
        "history-form": "/history",
        "board": "/board?op=permute",
        "board-none": "/board?op=conv&device=nothing",
        "kernels": "/kernels",
        "kernel": "/kernels/permute",
        "implementation": f"/implementations/ann/tiles?against={versions[-1]['version']}",
        "problem": "/problems/ann/row-norm",
        "upload": "/upload?op=permute",
        "call": "/call?op=masked-softmax",
        "account": "/account",
        "admin": "/admin",
        "health": "/admin/health",
        "api": "/docs",
        "not-found": "/jobs/0123456789ab",
        "share": re.sub(r"^https?://[^/]+", "", share),
        "share-compare": re.sub(r"^https?://[^/]+", "", both),
        "login": "/login",
    }


def _monitor(http: httpx.Client) -> str:
    """A monitor that has measured once; its id."""
    job = {"op": "permute", "cases": SQUARES[:2]}
    answer = http.post("/v1/monitors", json={"job": job, "every_s": 21_600})
    answer.raise_for_status()
    path = f"/v1/monitors/{answer.json()['id']}"
    until(lambda: http.get(path).json()["series"])
    found: str = answer.json()["id"]
    return found


def _ended(http: httpx.Client, job: Job) -> Job:
    return reached(http, job, lambda found: found["state"] not in UNFINISHED, WAIT_S)


def _post(http: httpx.Client, path: str, **fields: Any) -> None:
    answer = http.post(path, json=fields, timeout=120)
    assert answer.status_code in (200, 201), answer.text


def shoot(lab: Lab, browser: Browser, out: Path, only: str) -> None:
    """Take the pictures."""
    for scheme in SCHEMES:
        for width in WIDTHS:
            with _logged_in(lab, browser, scheme, width) as (page, guest):
                for name, path in lab.paths.items():
                    if only in name:
                        tab = guest if name.startswith(("share", "login")) else page
                        _visit(tab, lab.url + path)
                        _picture(tab, out / f"{name}-{width}-{scheme}.png", width)
                if only in "call-answer":
                    _call(page, lab.url)
                    _picture(page, out / f"call-answer-{width}-{scheme}.png", width)
                if only in "new-monitor-secret":
                    _secret(page, lab.url + lab.paths["new-monitor"])
                    _picture(page, out / f"new-monitor-secret-{width}-{scheme}.png", width)
                if only in "new-preview":
                    _preview(page, lab.url)
                    _picture(page, out / f"new-preview-{width}-{scheme}.png", width)


def _visit(page: Page, url: str) -> None:
    # A page that follows a job never stops loading.
    page.goto(url, wait_until="load")
    if page.locator("#rounds").count():
        page.locator("#rounds[data-drawn]").wait_for()
    if url.endswith("/docs"):
        page.locator(".opblock").first.wait_for()


def _picture(page: Page, file: Path, width: int) -> None:
    height = min(TALLEST, int(page.evaluate("document.documentElement.scrollHeight")))
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    # A browser draws long sources only where they are seen, so all of the picture must be seen.
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": max(800, height)})
    page.wait_for_timeout(DRAWN_MS)
    page.screenshot(path=file, full_page=True, clip=clip, animations="disabled")  # type: ignore[arg-type]
    if before is not None:
        page.set_viewport_size(before)


def _call(page: Page, url: str) -> None:
    """A call with typed numbers."""
    page.goto(f"{url}/call?op=permute")
    page.get_by_label("or values of x").fill("[[1, 2, 3], [4, 5, 6]]")
    page.get_by_label("dims", exact=True).fill("1,0")
    page.get_by_role("button", name="Call permute").click()
    page.locator("#answer").wait_for()


def _secret(page: Page, url: str) -> None:
    """A new monitor with a URL."""
    page.goto(url)
    page.get_by_label("URL to call").fill("http://example.org/hook")
    page.get_by_role("button", name="Add the monitor").click()
    page.locator(".error").wait_for()
    page.get_by_label("URL to call").fill("https://example.org/hook")
    page.get_by_role("button", name="Add the monitor").click()
    page.locator(".secret").wait_for()


def _preview(page: Page, url: str) -> None:
    page.goto(f"{url}/new?op=permute")
    page.get_by_label("Shapes of x").fill("512x512 1024x1024 4096x4096")
    page.get_by_label("dims", exact=True).fill("1,0")
    page.get_by_role("button", name="Preview").click()
    page.locator("#preview").wait_for()


@contextmanager
def _logged_in(lab: Lab, browser: Browser, scheme: Any, width: int) -> Iterator[tuple[Page, Page]]:
    """A page of the administrator, and one of somebody without a key."""
    window: Any = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with browser.new_context(**window) as context, browser.new_context(**window) as other:
        page = context.new_page()
        page.goto(f"{lab.url}/login")
        page.get_by_label("API key").fill(lab.keys["root"])
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{lab.url}/")
        yield page, other.new_page()


def main() -> None:
    """Take all pictures into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="only pages whose name contains this text")
    parser.add_argument("--data", type=Path, help="keep the server's data here, to use them again")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="warpcall-pages-") as folder:
        data = given.data or Path(folder)
        data.mkdir(parents=True, exist_ok=True)
        with running_lab(data) as lab, chromium() as browser:
            shoot(lab, browser, given.folder, given.only)


if __name__ == "__main__":
    main()
