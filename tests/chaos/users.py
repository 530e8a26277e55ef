"""Users who call servers and follow their jobs, whatever happens to the servers."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from typing import Any

import httpx
import numpy as np

from tests.chaos.machines import Machine
from tests.service.job_requests import CASE, JOB
from warpcall import Client, WarpcallError
from warpcall.jobs import UNFINISHED

DEADLINE_S = 8.0  # of a call: shorter than a partition
LATE_S = 7.0  # what a busy machine may add
PAUSE_S = 0.1  # between two calls
JOB_S = 180.0  # in which a job ends once nothing is killed any more
CASES = 6
SMALL, LARGE = np.arange(1024.0).reshape(8, 128), np.arange(131_072.0).reshape(256, 512)
# How long to wait for a connection, and for the next byte.
PATIENCE = httpx.Timeout(5, connect=2)


class User:
    """Calls and submits jobs in threads of their own, until `stop`.

    Args:
        repeats: whether the user's calls go to any server and are repeated as the SDK does by
            default. Otherwise each call is sent once.

    Attributes:
        name: of the user.
        calls: how many calls ended in each way.
        wrong: answers that are not those of the op, calls without an end in time, events that are
            missing or were sent twice.
        accepted: ids of the jobs.
        ended: the jobs as they ended.
    """

    def __init__(
        self, name: str, key: str, machines: list[Machine], jobs_at_once: int, *, repeats: bool
    ) -> None:
        self.name = name
        self.calls, self.wrong = Counter[str](), list[str]()
        self.accepted, self.ended = list[str](), dict[str, dict[str, Any]]()
        self._key, self._machines, self._repeats = key, machines, repeats
        self._stopping, self._deadline = threading.Event(), float("inf")
        work = [self._call, *(self._run_jobs for _ in range(jobs_at_once))]
        self._threads = [
            threading.Thread(target=each, args=(number,)) for number, each in enumerate(work)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the present call and jobs be the last ones."""
        self._deadline = time.monotonic() + JOB_S
        self._stopping.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _call(self, seed: int) -> None:
        chooser = random.Random(f"{self.name} {seed}")
        with contextlib.ExitStack() as stack:
            urls = [one.url for one in self._machines]
            each = [urls] if self._repeats else [[url] for url in urls]
            retries = None if self._repeats else 0
            clients = [
                stack.enter_context(
                    Client(some, api_key=self._key, timeout_s=DEADLINE_S, retries=retries)
                )
                for some in each
            ]
            while not self._stopping.wait(PAUSE_S):
                x, began = chooser.choice([SMALL, LARGE]), time.monotonic()
                try:
                    y = chooser.choice(clients).permute(x, dims=(1, 0))
                except WarpcallError as error:
                    self.calls[type(error).__name__] += 1
                else:
                    self.calls["answered"] += 1
                    if not np.array_equal(y, x.T):
                        self.wrong.append("a call had a wrong answer")
                if (took := time.monotonic() - began) > DEADLINE_S + LATE_S:
                    self.wrong.append(f"a call took {took:.1f} s")

    def _run_jobs(self, seed: int) -> None:
        chooser, number = random.Random(f"{self.name} {seed}"), 0
        with httpx.Client(
            headers={"authorization": f"Bearer {self._key}"}, timeout=PATIENCE
        ) as http:
            while not self._stopping.is_set():
                number += 1
                if (job := self._submitted(http, chooser, f"{self.name}-{seed}-{number}")) is None:
                    return
                self.accepted.append(job)
                self._follow(http, chooser, job)

    def _submitted(self, http: httpx.Client, chooser: random.Random, key: str) -> str | None:
        """The id of a job that was accepted, perhaps at the second try."""
        cases = [{**CASE, "shape": [8, n]} for n in range(2, 2 + CASES)]
        while time.monotonic() < self._deadline:
            with contextlib.suppress(httpx.TransportError):
                answer = http.post(
                    f"{chooser.choice(self._machines).url}/v1/jobs",
                    json={**JOB, "cases": cases, "fresh": True},
                    headers={"idempotency-key": key},
                )
                if answer.status_code in (200, 201):
                    found: str = answer.json()["id"]
                    return found
                if answer.status_code < 500 and answer.status_code != 429:
                    self.wrong.append(f"a job was refused: {answer.text}")
                    return None
            time.sleep(0.1)
        self.wrong.append(f"no server has taken the job {key}")
        return None

    def _follow(self, http: httpx.Client, chooser: random.Random, job: str) -> None:
        """Read each event of a job once, from any server, until it has ended."""
        last = 0
        while time.monotonic() < self._deadline:
            url = f"{chooser.choice(self._machines).url}/v1/jobs/{job}"
            with contextlib.suppress(httpx.TransportError):
                last = self._read_events(http, f"{url}/events", last)
                answer = http.get(url)
                if answer.status_code == 404:
                    self.wrong.append(f"the job {job} is not there")
                if answer.status_code == 200 and answer.json()["state"] not in UNFINISHED:
                    self.ended[job] = answer.json()
                    return
            time.sleep(0.1)
        self.wrong.append(f"the job {job} has not ended")

    def _read_events(self, http: httpx.Client, url: str, last: int) -> int:
        """The number of the last event that has come."""
        with (
            contextlib.suppress(httpx.TransportError),
            http.stream("GET", url, headers={"last-event-id": str(last)}) as answer,
        ):
            for line in answer.iter_lines():
                if line.startswith("id:"):
                    number = int(line[3:])
                    if number != last + 1:
                        self.wrong.append(f"{url}: event {number} follows {last}")
                    last = number
        return last
