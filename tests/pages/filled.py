"""A database with jobs of every kind, which the tests of the pages read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.pages import lab
from tests.service.artefacts.shown import add_profiles
from warpcall_service.store.database import Store

MARKUP = '<img src=x onerror="alert(1)">'
CASE = "permute x=BF16[4096,4096] dims=1,0"
NAMES = ("warpcall", "torch", "ann/tiles", "copy")
SPEEDS = {"warpcall": 0.96, "torch": 0.2, "ann/tiles": 0.955, "copy": 1.0}


@dataclass(frozen=True)
class Jobs:
    """The ids of the jobs that `filled` has made."""

    earlier: str
    later: str
    done: str
    failed: str
    many: str
    running: str
    queued: str
    marked: str
    raced: str
    monitor: str
    group: str

    @property
    def jobs(self) -> list[str]:
        ended = [self.done, self.failed, self.many, self.marked, self.raced]
        return [*ended, self.running, self.queued]

    @property
    def paths(self) -> list[str]:
        """One address of each page, and those of jobs that differ in what they show."""
        case = f"permute&implementation=warpcall&case={quote(CASE)}"
        return [
            "/",
            "/jobs",
            "/new",
            "/new?op=isin",
            "/upload",
            "/upload/problem",
            "/call?op=masked-softmax",
            "/admin",
            "/admin/health",
            "/shares",
            f"/jobs/{self.done}/shares",
            "/docs",
            "/login",
            "/start",
            "/guide",
            "/guide/http-api",
            "/guide/benchmarks/h200",
            "/guide?q=key",
            *(f"/jobs/{job}" for job in self.jobs),
            f"/groups/{self.group}",
            f"/jobs/{self.done}/cases/1",
            f"/jobs/{self.done}/regression",
            f"/jobs/{self.failed}/regression?percent=3",
            f"/jobs/{self.failed}/cases/0",
            f"/jobs/{self.marked}/cases/0",
            "/compare",
            f"/compare?a={self.done}",
            f"/compare?a={self.earlier}&b={self.done}",
            "/history",
            f"/history?op={case}",
            "/board",
            f"/board?op={case}",
            "/board?op=conv",
            "/monitors",
            "/monitors?user=all",
            "/monitors/new",
            f"/monitors/new?like={self.done}",
            f"/monitors/new?like={self.done}&case={quote(CASE)}",
            f"/monitors/{self.monitor}",
            "/kernels",
            "/kernels/permute",
            "/compiled?op=isin",
            "/compiled?op=permute&shape=64x256&dtype=F32&params.dims=1,0",
            "/implementations/ann/tiles",
        ]


def filled(folder: Path, url: str | None = None) -> dict[str, str]:
    """Fill the database in a folder, or at a URL, and return the ids of its jobs by name."""
    from tests.pages import races  # with torch, which a conftest must not import

    store = Store(url, folder)
    store.migrate()
    for line in ("return x", "return x  # <script>alert(1)</script>"):
        source = f"def permute(x, dims):\n    # Nothing is moved.\n    {line}\n"
        lab.upload(store, "ann", "permute", "tiles", source)
    found = {"monitor": lab.monitor(store, "alice", MARKUP)}
    old = {**lab.H200, "driver": "575.57.08"}
    for number in range(4):
        lab.submit(store, "alice", "permute", lab.permute_cases(), NAMES)
        found["earlier"] = lab.measure(
            store,
            {**SPEEDS, "warpcall": 0.9},
            facts=old,
            sources={"warpcall": "a" * 64},
            seed=number,
        )
    lab.submit(store, "alice", "permute", lab.permute_cases(), NAMES)
    found["later"] = lab.measure(store, SPEEDS, sources={"warpcall": "b" * 64}, seed=9)
    lab.submit(store, "alice", "permute", lab.permute_cases(), NAMES, tags=["nightly"])
    masked = [{"round": number, "reason": "thermal slowdown"} for number in range(40)]
    unstable = {"tags": ["unstable"], "masked": masked}
    found["done"] = lab.measure(store, SPEEDS, changes={1: unstable})
    lab.add_artefacts(store, folder, found["done"], MARKUP)
    add_profiles(store, folder, found["done"], 1, MARKUP)
    lab.submit(store, "alice", "permute", lab.permute_cases((512,)), ["warpcall", "torch"])
    unread = {"readings": None}  # as on a CPU
    found["failed"] = lab.measure(store, {"warpcall": 0.9}, state="failed", changes={0: unread})
    sizes = tuple(range(100, 700, 25))
    lab.submit(store, "carol", "permute", lab.permute_cases(sizes), ["warpcall", "torch"])
    found["many"] = lab.measure(store, {"warpcall": 0.9, "torch": 0.88}, rounds=40)
    lab.submit(store, "carol", "permute", lab.permute_cases((64,)), ["warpcall"], note=MARKUP)
    marked = {"tags": [MARKUP], "masked": [{"round": 0, "reason": MARKUP}]}
    facts = {**lab.H200, "device": MARKUP}
    found["marked"] = lab.measure(store, {}, facts=facts, error=MARKUP, changes={0: marked})
    racers = [*(f"dan/try{number:02}" for number in range(19)), "torch"]
    found["raced"] = races.job(store, racers, cases=2, failed=racers[3:4])
    lab.submit(store, "bob", "permute", lab.permute_cases(), ["warpcall", "torch"])
    found["running"] = lab.measure(store, {"warpcall": 0.9, "torch": 0.2}, cases=2)
    found["queued"] = lab.submit(
        store, "bob", "permute", lab.permute_cases(), ["warpcall", "torch"]
    )
    parts = {"H100": found["earlier"], "H200": found["done"], "B200": found["queued"]}
    found["group"] = lab.group(store, "alice", parts)
    store.close()
    return found
