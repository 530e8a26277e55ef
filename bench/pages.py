"""How fast the web pages are with many jobs in the database: python -m bench.pages

Through a real server, on SQLite or on the PostgreSQL that --database-url names (an empty one), and
in a real browser, Chromium without a window. Each page is asked for once on a server that has just
started, then by a program, and then by a browser that has stored nothing of this server.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import sqlalchemy as sa
from playwright.sync_api import Browser, Request

from bench.jobs.stored_jobs import fill, say
from demo.server import Server, running_server
from tests.pages import lab
from tests.pages.browsers import chromium
from warpcall_bench.uploads.tables import UploadedVersion
from warpcall_service.auth.tables import Usage
from warpcall_service.store.database import Store

REPEATS = 20
VISITS = 5  # of a browser, each with an empty cache
NAMES = ("warpcall", "torch", "ann/tiles", "copy")
SPEEDS = {"warpcall": 0.96, "torch": 0.2, "ann/tiles": 0.955, "copy": 1.0}
CASE = "permute x=BF16[4096,4096] dims=1,0"
MOST_RUNS = 200  # that a monitor shows
# The pages whose limit is not that of all pages: a case of 3,000 rounds, results of 500 cases.
MANY_ROUNDS, MANY_CASES = "case of 3,000 rounds", "job of 500 cases"
# Notes when a diagram was drawn by a script, and when the largest content was painted that the
# first screen has, in milliseconds after the navigation began.
OBSERVER = """
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.largestAt = entry.startTime;
}).observe({type: "largest-contentful-paint", buffered: true});
new MutationObserver(() => {
  if (!window.drawnAt && document.querySelector("[data-drawn]")) window.drawnAt = performance.now();
}).observe(document, {subtree: true, childList: true, attributes: true});
"""
TIMES = """
async () => {
  const paint = await new Promise((done) => {
    const name = "first-contentful-paint";
    new PerformanceObserver((list) => {
      const found = list.getEntriesByName(name)[0];
      if (found) done(found.startTime);
    }).observe({type: "paint", buffered: true});
  });
  // The paint of what came last is reported a little later.
  await new Promise((done) => setTimeout(done, 200));
  const found = performance.getEntriesByType("navigation")[0];
  const files = performance.getEntriesByType("resource");
  return {
    paint,
    largest: window.largestAt,
    drawn: window.drawnAt || found.domContentLoadedEventEnd,
    bytes: [found, ...files].reduce((sum, one) => sum + one.transferSize, 0),
  };
}
"""


@dataclass
class Times:
    """What was measured of a page: milliseconds, and bytes with heads.

    Attributes:
        cold: time to the first byte on a server that has just started.
        first_byte: the same, later.
        cpu: of the server's process for one request, which other programs on the machine do not
            change much.
        paint: until the browser has painted content.
        largest: until it has painted the largest text or picture of the first screen.
        drawn: until the page was read, or its diagram was drawn by a script.
        nbytes: of the page and all that it loads.
    """

    cold: float = 0.0
    cpu: float = 0.0
    first_byte: list[float] = field(default_factory=list)
    paint: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)
    nbytes: int = 0


def main() -> None:
    """Fill a database, start a server on it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--database-url")
    parser.add_argument(
        "--folder", help="keep the database there, and use it again if it is there already"
    )
    args = parser.parse_args()
    with contextlib.ExitStack() as opened:
        folder = args.folder or opened.enter_context(
            tempfile.TemporaryDirectory(prefix="warpcall-")
        )
        settings = {"WARPCALL_DATA_DIR": folder, "WARPCALL_ARENA_BYTES": "16MiB"}
        if args.database_url:
            settings["WARPCALL_DATABASE_URL"] = args.database_url
        store = Store(args.database_url, Path(folder))
        store.migrate()
        known = Path(folder, "paths.json")
        if not known.exists():
            known.write_text(json.dumps(filled(store, Path(folder), args.jobs)))
        paths: dict[str, str] = json.loads(known.read_text())
        store.close()
        # Jobs that wait are of the user whose job another server runs: none is started here.
        settings |= {"WARPCALL_USER_RUNNING_JOBS": "1", "WARPCALL_JOB_LEASE_S": "86400"}
        with running_server(settings) as server, chromium() as browser:
            say(f"{args.jobs} jobs in {store.label}; load {load()}")
            measured = {name: Times() for name in paths}
            for name, path in paths.items():
                measured[name].cold = first_byte_ms(server, path)
            for name, path in paths.items():
                before = cpu_ms(server)
                measured[name].first_byte = [first_byte_ms(server, path) for _ in range(REPEATS)]
                measured[name].cpu = (cpu_ms(server) - before) / REPEATS
            for name, path in paths.items():
                visit(browser, server, path, measured[name])
            say(table(measured))
            say(f"first visit: {measured['now'].nbytes / 1e3:.1f} KB; load {load()}")
            say(beside(server, list(paths.values())))


def filled(store: Store, folder: Path, jobs: int) -> dict[str, str]:
    """Fill a database, and return the paths of all pages by name."""
    for line in ("return x", "return x.contiguous()"):
        source = f"def permute(x, dims):\n{SOURCE}    {line}\n"
        lab.upload(store, "ann", "permute", "tiles", source)
    pair = []
    for seed in range(2):
        lab.submit(store, "alice", "permute", lab.permute_cases(), NAMES)
        pair.append(lab.measure(store, SPEEDS, seed=seed))
    lab.submit(store, "alice", "permute", lab.permute_cases((4096,)), NAMES)
    rounds = lab.measure(store, SPEEDS, rounds=3000)
    lab.submit(store, "alice", "permute", lab.permute_cases(range(64, 314)), NAMES)
    cases = lab.measure(store, SPEEDS, rounds=40)
    lab.submit(store, "alice", "permute", lab.permute_cases(), NAMES[:2], tags=["regression"])
    check = lab.measure(store, SPEEDS)
    monitor = lab.monitor(store, "local", "", "conv", MOST_RUNS)
    made = 5 + MOST_RUNS
    fill(store, jobs - made, 200, after=made)
    lab.add_artefacts(store, folder, pair[0], "it is larger than 64 MiB")
    use(store)
    with store.read() as session:
        versions = session.scalars(
            sa.select(UploadedVersion.sha256).order_by(UploadedVersion.number)
        ).all()
    older, newer = (version[:12] for version in versions)
    of_case = f"op=permute&implementation=warpcall&case={quote(CASE)}"
    filled_case = "op=permute&implementation=torch&case=permute%20case%201"
    return {
        "now": "/",
        "jobs": "/jobs",
        "jobs with a rare tag": "/jobs?tag=rare",
        "job": f"/jobs/{pair[0]}",
        MANY_CASES: f"/jobs/{cases}",
        "case": f"/jobs/{pair[0]}/cases/1",
        MANY_ROUNDS: f"/jobs/{rounds}/cases/0",
        "form to compare": "/compare",
        "compare": f"/compare?a={pair[0]}&b={pair[1]}",
        "history": f"/history?{of_case}",
        "history of 2,400 jobs": f"/history?{filled_case}",
        "board": "/board",
        "board of a case": "/board?op=permute&case=permute%20case%201",
        "regression check": f"/jobs/{check}/regression",
        "monitors": "/monitors",
        "monitor of 200 runs": f"/monitors/{monitor}",
        "new monitor": "/monitors/new",
        "form of a monitor": f"/monitors/new?like={pair[0]}",
        "kernels": "/kernels",
        "kernel": "/kernels/masked-softmax",
        "uploaded kernel": "/implementations/ann/tiles",
        "difference": f"/implementations/ann/tiles?version={newer}&against={older}",
        "compiled": "/compiled?op=permute&shape=1024x1024&dtype=F32&params.dims=1,0",
        "form of compiled": "/compiled?op=masked-softmax",
        "new job": "/new",
        "form of an op": "/new?op=masked-softmax",
        "upload": "/upload",
        "call": "/call?op=masked-softmax",
        "admin": "/admin",
        "docs": "/docs",
        "login": "/login",
    }


# 400 lines of code in an uploaded source.
SOURCE = "".join(f"    y{n} = sum(a * {n} for a in range(3)) if x else 'no'\n" for n in range(400))


def use(store: Store) -> None:
    """Add what 30 users have used in 30 days."""
    days = [time.strftime("%Y-%m-%d", time.gmtime(time.time() - n * 86_400)) for n in range(30)]
    amounts = {"failures": 0, "bytes_in": 1 << 20, "bytes_out": 1 << 20, "kernel_us": 1_000_000}
    with store.write() as session:
        session.execute(
            sa.insert(Usage),
            [
                {"day": day, "user_name": f"user{user}", "op": op, "requests": user + 1, **amounts}
                for day in days
                for user in range(30)
                for op in ("permute", "conv")
            ],
        )


def first_byte_ms(server: Server, path: str) -> float:
    """Milliseconds until the first byte of a page came, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    begin = time.perf_counter()
    connection.request("GET", path, headers={"accept": "text/html"})
    answer = connection.getresponse()
    first = answer.read(1)
    taken_ms = (time.perf_counter() - begin) * 1e3
    assert answer.status == 200, f"{path}: {answer.status}"
    assert first
    answer.read()
    connection.close()
    return taken_ms


def cpu_ms(server: Server) -> float:
    """CPU time of the process that speaks HTTP; its clock has steps of 10 ms."""
    times = psutil.Process(server.process.pid).cpu_times()
    return 1e3 * (times.user + times.system)


def visit(browser: Browser, server: Server, path: str, times: Times) -> None:
    """Open a page in browsers that have nothing in their cache."""
    for _ in range(VISITS):
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.add_init_script(OBSERVER)
        asked: list[str] = []

        def note(request: Request, asked: list[str] = asked) -> None:
            asked.append(request.url)

        page.on("request", note)
        page.goto(server.url + path, wait_until="load")
        if "/cases/" in path:
            page.wait_for_selector("[data-drawn]", state="attached")
        found: dict[str, Any] = page.evaluate(TIMES)
        times.paint.append(found["paint"])
        times.largest.append(found["largest"])
        times.drawn.append(found["drawn"])
        times.nbytes = found["bytes"]
        others = {urlsplit(url).netloc for url in asked} - {urlsplit(server.url).netloc, ""}
        assert not others, f"{path} asks {others}"
        context.close()


def beside(server: Server, paths: list[str]) -> str:
    """How long another user's requests take while a user reads all pages again and again."""

    def latencies(ended: threading.Event) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        found = []
        while not ended.wait(0.002):
            begin = time.perf_counter()
            connection.request("GET", "/v1/me")
            connection.getresponse().read()
            found.append((time.perf_counter() - begin) * 1e3)
        connection.close()
        return found

    def during(work: Any) -> list[float]:
        ended, found = threading.Event(), []
        thread = threading.Thread(target=lambda: found.extend(latencies(ended)))
        thread.start()
        work()
        ended.set()
        thread.join()
        return sorted(found)

    alone = during(lambda: time.sleep(3))
    busy = during(lambda: [first_byte_ms(server, path) for _ in range(5) for path in paths])
    return "; ".join(
        f"{what}: median {statistics.median(one):.1f}, 99 % below {one[int(0.99 * len(one))]:.1f}, "
        f"slowest {one[-1]:.1f} ms"
        for what, one in (("GET /v1/me alone", alone), ("while pages are read", busy))
    )


def table(measured: dict[str, Times]) -> str:
    """Milliseconds for each page, least and median, as the table of docs/pages.md."""
    lines = [
        "| page | CPU of the server | first | first byte | first paint | largest paint | drawn | KB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, one in measured.items():
        cells = [
            f"{min(times):.0f} / {statistics.median(times):.0f}"
            for times in (one.first_byte, one.paint, one.largest, one.drawn)
        ]
        lines.append(
            f"| {name} | {one.cpu:.0f} | {one.cold:.0f} | {' | '.join(cells)} | {one.nbytes / 1e3:.0f} |"
        )
    return "\n".join(lines)


def load() -> str:
    """The load of this machine, over the last minute."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
