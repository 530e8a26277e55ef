"""Every page and route survives rows with numbers that no server would store today."""

from __future__ import annotations

import itertools
import json
import math
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.servers import running_server
from tests.service.databases import Database
from tests.service.job_requests import client
from tests.service.requests import log_of
from tests.service.stored import IMPLEMENTATIONS, add_events, finished, number, result
from warpcall_bench.jobs.exports import MEDIA
from warpcall_bench.jobs.tables import Job, JobCase, JobEvent, Measurement
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

HUGE, LEAST = 1e308, 5e-324
CASES, ROUNDS = 3, 24
HTML = {"accept": "text/html"}
UNCHANGED = {"position", "round", "rounds"}  # they number other things
COUNTS = {"n", "peak_bytes", "bytes_moved", "sm_clock_mhz", "temperature_c", "cores"}
Draw = Callable[[str], Any]


def always(value: Any) -> Draw:
    return lambda name: value


def some(*values: Any, seed: int) -> Draw:
    drawn = random.Random(seed)
    return lambda name: drawn.choice(values)


MANY = (HUGE, LEAST, 0.0, -HUGE, -1.0, 1, 1e300, 1e-300, 2.0, 10**30)
DRAWS: dict[str, Draw] = {
    "huge": always(HUGE),
    "least": always(LEAST),
    "zero": always(0.0),
    "negative": always(-1.0),
    "far negative": always(-HUGE),
    "integer": always(10**400),
    "infinite": always(float("inf")),
    "not a number": always(float("nan")),
    "huge and least": some(HUGE, LEAST, seed=1),
    **{f"mixed {seed}": some(*MANY, seed=seed) for seed in range(2, 8)},
    "usual": some(2.0, 2.1, seed=9),
}


def changed(value: Any, draw: Draw, name: str = "") -> Any:
    """The same data with other numbers."""
    if isinstance(value, dict):
        return {key: changed(one, draw, key) for key, one in value.items()}
    if isinstance(value, list):
        return [changed(one, draw, name) for one in value]
    if isinstance(value, bool) or not isinstance(value, int | float) or name in UNCHANGED:
        return value
    drawn = draw(name)
    if name not in COUNTS:
        return drawn
    return (
        1
        if isinstance(drawn, float) and math.isnan(drawn)
        else int(min(max(drawn, -(10**30)), 10**30))
    )


def extreme(draw: Draw) -> dict[str, Any]:
    """A result of a case with everything that a result may have, and other numbers."""
    made = result(ROUNDS, 0)
    ratio = {"ratio": 1.0, "low": 1.0, "high": 1.0, "n": 3, "verdict": "faster"}
    made["limit"] = {**made["implementations"][0], "name": "copy"}
    made |= {"a_a": ratio, "seconds": 1.0, "output_bytes": 1, "tags": []}
    made["readings"] = {
        "rounds": [1, 9],
        "sm_clock_mhz": [1, 2],
        "power_w": [1.0, 2.0],
        "temperature_c": [1, 2],
    }
    for one in [made["limit"], *made["implementations"]]:
        one |= dict.fromkeys(("gb_per_s", "share_of_limit", "hot_us", "host_us", "energy_mj"), 1.0)
        one |= {"peak_bytes": 1, "relative": ratio, "tags": []}
    made["implementations"][0]["relative"] = None
    return dict(changed(made, draw))


def spoil(store: Store, job_id: str, draw: Draw) -> None:
    """Write other numbers straight to the rows of a job."""
    key = number(store, job_id)
    with store.write() as session:
        job = session.get_one(Job, key)
        job.fingerprint = json.dumps(changed({"cores": 2}, draw))
        for case in session.scalars(sa.select(JobCase).where(JobCase.job_number == key)):
            made = extreme(draw)
            case.result = zlib.compress(json.dumps(made).encode())
            for one in made["implementations"]:
                row = session.get_one(Measurement, (key, case.position, one["name"]))
                row.summary = json.dumps({k: v for k, v in one.items() if k != "samples_us"})
                row.median_us, row.limit_us = (
                    as_column(one["median_us"]),
                    as_column(made["limit"]["median_us"]),
                )
    add_events(store, job_id, 2)
    progress = changed({"half_width": 1.0, "medians_us": {IMPLEMENTATIONS[0]: 1.0}}, draw)
    with store.write() as session:
        data = {"position": 0, "phase": "rounds", "rounds": 3, **progress}
        session.execute(
            sa.update(JobEvent)
            .where(JobEvent.job_number == key, JobEvent.kind == "progress")
            .values(data=json.dumps(data))
        )


def as_column(value: float) -> float | None:
    """The number as the column of a float can have it; SQLite stores NaN as null."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return HUGE if value > HUGE else float(value)


def pairs(database: Database) -> set[tuple[str, str]]:
    """The jobs that are compared.

    On SQLite these are each kind of numbers with each, and each job of mixed numbers with a neighbour.
    A lane compares what both databases return as the same bytes, so one way through all is enough
    for PostgreSQL.
    """
    around = {*itertools.pairwise([*DRAWS, next(iter(DRAWS))])}
    if database.kind != "sqlite":
        return around
    plain = [name for name in DRAWS if not name.startswith("mixed")]
    return around | {*itertools.product(plain, plain)}


def ways(ids: dict[str, str], compared: set[tuple[str, str]]) -> Iterator[str]:
    """The address of every page and route that reads stored measurements."""
    case = "op=permute&case=case%200"
    for name in IMPLEMENTATIONS[:2]:
        yield f"/history?{case}&implementation={name}"
        yield f"/v1/jobs/history?{case}&implementation={name}"
        yield f"/kernels/permute?implementation={name}"
    yield from ("/", "/jobs", "/kernels", "/v1/jobs", "/v1/kernels", "/v1/jobs/queue")
    yield from ("/board", "/v1/board?op=permute", "/board?op=permute", "/kernels/permute")
    for device in ("", "&device=a%20machine"):
        yield f"/board?{case}{device}"
        yield f"/v1/board?{case}{device}"
    for one in ids.values():
        for path in ("", "/cases/0", "/regression"):
            yield f"/jobs/{one}{path}"
            yield f"/v1/jobs/{one}{path}"
        yield f"/new?like={one}"
        yield f"/v1/jobs/{one}/progress"
        yield f"/v1/jobs/{one}/events"
        yield f"/v1/jobs/{one}/results?samples=true"
        for form in MEDIA:
            yield f"/v1/jobs/{one}/results?format={form}"
    for a, b in compared:
        yield f"/compare?a={ids[a]}&b={ids[b]}"
        yield f"/v1/jobs/{ids[a]}/compare/{ids[b]}"


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_every_page_and_route_survives_extreme_numbers(
    database: Database,
) -> None:
    store = database.store()
    store.migrate()
    ids = {name: finished(store, "local", CASES, ROUNDS) for name in DRAWS}
    for name, draw in DRAWS.items():
        spoil(store, ids[name], draw)
    store.close()

    with running_server(database.settings) as server, client(server) as http:
        broken = [why for way in ways(ids, pairs(database)) if (why := trouble(http, way))]
        links = [
            http.post(f"/v1/jobs/{ids[a]}/shares", json={"other": ids[b]} if b else {}).json()
            for a, b in (*((one, "") for one in ids), ("huge", "least"), ("mixed 2", "mixed 3"))
        ]
        for link in links:
            token = link["url"].removeprefix("/share/")
            rest = ("/compare",) if link["other"] else ("", "/results", "/cases/0")
            shared = [link["url"], *(f"/v1/shared/{token}{way}" for way in rest)]
            broken += [why for way in shared if (why := trouble(http, way))]
        log = log_of(server)

    names = {value: name for name, value in ids.items()}
    for job, name in names.items():
        broken = [way.replace(job, f"<{name}>") for way in broken]
    assert broken == []
    assert "Traceback" not in log


def trouble(http: httpx.Client, way: str) -> str:
    """What is wrong with an answer; empty if it is whole."""
    headers = {} if way.startswith("/v1") else HTML
    try:
        answer = http.get(way, headers=headers)
    except httpx.HTTPError as error:
        return f"{way}: {error!r}"
    text = answer.text
    if answer.status_code != 200:
        return f"{way}: {answer.status_code} {text[:200]}"
    if headers and (
        "rest of this page is missing" in text or not text.rstrip().endswith("</html>")
    ):
        return f"{way}: it breaks off"
    if answer.headers["content-type"].startswith("application/json"):
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{way}: {name} is no JSON"))
    return ""
