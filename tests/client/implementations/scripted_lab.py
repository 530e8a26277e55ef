"""A scripted server that has ops, stores uploads, and answers every job with fixed results."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.client.implementations.answers import ENVIRONMENT, SHIPPED, UPLOADED
from tests.client.job_answers import AT, DETAILS, SUBMITTED
from tests.client.scripted import Visit
from tests.client.scripted_ops import OpsServer, refuse, say
from warpcall.errors import NotFound, Problem

PATH = "/v1/implementations"
REMARK = "no GPU: nothing can be concluded"
ENDED = {"state": "succeeded", "exit_class": "ok", "finished_at": AT, "cases_done": 1}


def row(implementation: str, **fields: Any) -> dict[str, Any]:
    """A row of results; by default it has a time of 10 us."""
    from warpcall.jobs.results import Measurement

    names = Measurement.__dataclass_fields__
    usual = {
        "position": 0, "case": "permute x=F32[8,8] dims=1,0", "status": "ok", "n": 30, "tags": [],
        "median_us": 10.0, "ci_low_us": 9.0, "ci_high_us": 11.0, "gb_per_s": 1.0,
        "share_of_limit": 0.5, "implementation": implementation, "why_undecided": "",
        "verified": False, "sanitizer": {},
    }  # fmt: skip
    return {**dict.fromkeys(names), **usual, **fields}


class LabServer(OpsServer):
    """Stores uploads of the user ann.

    Attributes:
        uploads: the answers of all uploads, the latest last, each with its source.
        jobs: the submissions.
        rows: the rows of every job's results.
        printed: what uploads printed in every job.
        end: fields of every job that differ from those of one that succeeded.
        refusal: if it is not None, it answers every upload.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.printed: list[dict[str, Any]] = []
        self.end: dict[str, Any] = {}
        self.refusal: Problem | None = None

    def _answer(self, visit: Visit) -> None:
        url = urlsplit(visit.target)
        if url.path == PATH and visit.method == "POST":
            self._upload(visit)
        elif url.path == PATH:
            say(
                visit,
                200,
                {"implementations": [SHIPPED, *self.uploads], "errors": [], "next": None},
            )
        elif url.path == f"{PATH}/environment":
            say(visit, 200, ENVIRONMENT)
        elif url.path.startswith(f"{PATH}/"):
            self._one(visit, unquote(url.path.removeprefix(f"{PATH}/")))
        elif url.path.startswith("/v1/jobs"):
            self._job(visit, url.path)
        else:
            super()._answer(visit)

    def _upload(self, visit: Visit) -> None:
        body = json.loads(visit.body())
        self.seen.params = body
        if self.refusal is not None:
            return refuse(visit, self.refusal)
        function = body.get("function") or body["op"].replace("-", "_")
        known = [one for one in self.uploads if one["source"] == body["source"]]
        sha256 = hashlib.sha256(body["source"].encode()).hexdigest()
        one = known[0] if known else {
            **UPLOADED, "name": f"ann/{body.get('name') or function}", "function": function,
            "op": body["op"], "sha256": sha256, "version": sha256[:12], "source": body["source"],
            "private": body.get("private", False), "nbytes": len(body["source"]), "versions": [],
        }  # fmt: skip
        self.uploads = [other for other in self.uploads if other is not one] + [one]
        return say(visit, 200 if known else 201, {**one, "created": not known})

    def _one(self, visit: Visit, name: str) -> None:
        found = [one for one in self.uploads if one["name"] == name]
        if not found:
            refuse(visit, NotFound(f"there is no implementation {name!r}", field="name"))
        elif visit.method == "DELETE":
            self.uploads = [one for one in self.uploads if one["name"] != name]
            visit.answer(204)
        else:
            say(visit, 200, found[-1])

    def _job(self, visit: Visit, path: str) -> None:
        if visit.method == "POST":
            self.jobs.append(json.loads(visit.body()))
            implementations = self.jobs[-1]["implementations"]
            say(visit, 201, {**SUBMITTED, "implementations": implementations})
        elif path.endswith("/events"):
            visit.answer(204)
        elif path.endswith("/results"):
            say(visit, 200, {**RESULTS, "measurements": self.rows})
        elif path.endswith("/printed"):
            say(visit, 200, {"id": "j1", "printed": self.printed})
        else:
            implementations = self.jobs[-1]["implementations"]
            say(visit, 200, {**DETAILS, **ENDED, **self.end, "implementations": implementations})


RESULTS: dict[str, Any] = {
    "id": "j1", "state": "succeeded", "environment": None, "fingerprint": None, "cases": [],
    "remarks": [REMARK],
}  # fmt: skip
