"""A scripted server that stores problems besides what `LabServer` has."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.client.implementations.scripted_lab import LabServer
from tests.client.problems.answers import DECLARATION, DETAILS
from tests.client.scripted import Visit
from tests.client.scripted_ops import refuse, say
from warpcall.errors import NotFound, Problem

PATH = "/v1/problems"


class ProblemsServer(LabServer):
    """Stores problems of the user ann, all with one declaration.

    Attributes:
        problems: the details of each version that was uploaded, the latest last.
        next: of every page of the list.
        job_refusal: if it is not None, it answers every submission.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[dict[str, Any]] = []
        self.next: str | None = None
        self.job_refusal: Problem | None = None

    def _answer(self, visit: Visit) -> None:
        url = urlsplit(visit.target)
        if url.path == PATH and visit.method == "POST":
            self._add(visit)
        elif url.path == PATH:
            say(visit, 200, {"problems": self.problems, "next": self.next})
        elif url.path.startswith(f"{PATH}/"):
            version = parse_qs(url.query).get("version", [""])[0]
            self._problem(visit, unquote(url.path.removeprefix(f"{PATH}/")), version)
        elif url.path == "/v1/jobs" and self.job_refusal is not None:
            refuse(visit, self.job_refusal)
        elif url.path == "/v1/jobs/history":
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            say(visit, 200, {**asked, "points": []})
        else:
            super()._answer(visit)

    def _add(self, visit: Visit) -> None:
        body = json.loads(visit.body())
        self.seen.params = body
        if self.refusal is not None:
            return refuse(visit, self.refusal)
        sha256 = hashlib.sha256(body["source"].encode()).hexdigest()
        known = [one for one in self.problems if one["sha256"] == sha256]
        name = f"ann/{body.get('name', 'row-norm')}"
        one = {
            **DETAILS, "name": name, "declaration": {**DECLARATION, "name": name},
            "sha256": sha256, "version": sha256[:12], "source": body["source"],
            "private": body.get("private", False),
        }  # fmt: skip
        self.problems = [other for other in self.problems if other["sha256"] != sha256] + [one]
        return say(visit, 200 if known else 201, {**one, "created": not known})

    def _problem(self, visit: Visit, name: str, version: str) -> None:
        found = [
            one
            for one in self.problems
            if one["name"] == name and one["sha256"].startswith(version)
        ]
        if not found:
            refuse(visit, NotFound(f"there is no problem {name!r}", field="name"))
        elif visit.method == "DELETE":
            self.problems = [one for one in self.problems if one not in found]
            visit.answer(204)
        else:
            say(visit, 200, found[-1])
