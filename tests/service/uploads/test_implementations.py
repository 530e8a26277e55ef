"""Uploaded implementations over HTTP: stored in versions, listed, read, deleted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.databases import new_database
from tests.service.requests import logged, metrics, problem_of
from tests.service.uploads.requests import PATH, Lab, names, running_lab, upload, uploaded
from tests.service.uploads.sources import PLAIN, SHORT

pytestmark = pytest.mark.slow

OTHER = SHORT.replace("x", "x ")


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = new_database(request, tmp_path_factory.mktemp("lab"))
    users = ("ann@lab.org", "ann", "bob", "cleo", "dora", "emil", "fay")
    with running_lab(database, *users, WARPCALL_USER_MAX_UPLOADS="6") as running:
        yield running


def test_an_upload_is_described_and_can_be_read(lab: Lab) -> None:
    with lab.http("ann@lab.org") as ann, lab.http("bob") as bob:
        found = uploaded(ann, PLAIN, name="mine.v1")
        details = bob.get(f"{PATH}/ann@lab.org/mine.v1").json()
        listed = bob.get(PATH, params={"user": "ann@lab.org"}).json()

    sha256 = hashlib.sha256(json.dumps(["permute", "permute", PLAIN]).encode()).hexdigest()
    known: dict[str, Any] = {
        "name": "ann@lab.org/mine.v1",
        "kind": "uploaded",
        "op": "permute",
        "doc": "Permute in plain torch.",
        "user": "ann@lab.org",
        "version": sha256[:12],
        "sha256": sha256,
        "function": "permute",
        "private": False,
        "nbytes": len(PLAIN),
        "created_at": found["created_at"],
    }
    assert found == {**known, "created": True}
    version = {name: known[name] for name in ("version", "sha256", "created_at", "nbytes")}
    assert details == {**known, "source": PLAIN, "versions": [version], "odd_cases": []}
    assert listed == {"implementations": [known], "errors": [], "next": None}


def test_the_same_source_again_is_found_and_the_last_one_uploaded_is_the_latest(lab: Lab) -> None:
    with lab.http("ann") as ann:
        first = uploaded(ann, SHORT, name="twice")
        again = uploaded(ann, SHORT, name="twice")
        second = uploaded(ann, OTHER, name="twice")
        latest = ann.get(f"{PATH}/ann/twice").json()
        older = ann.get(f"{PATH}/ann/twice", params={"version": first["sha256"][:8]}).json()
        back = uploaded(ann, SHORT, name="twice")
        now = ann.get(f"{PATH}/ann/twice").json()

    assert (first["created"], again["created"], back["created"]) == (True, False, False)
    assert {**again, "created": True} == first == {**back, "created": True}
    assert [latest["version"], older["version"]] == [second["version"], first["version"]]
    assert [one["version"] for one in latest["versions"]] == [second["version"], first["version"]]
    assert [one["version"] for one in now["versions"]] == [first["version"], second["version"]]


def test_a_private_one_does_not_exist_for_others(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob, lab.http("root") as root:
        secret = uploaded(ann, SHORT, name="secret", private=True)
        version = {"version": secret["version"]}
        seen = {
            user: (
                "ann/secret" in names(http),
                http.get(f"{PATH}/ann/secret").status_code,
                http.get(f"{PATH}/ann/secret", params=version).status_code,
            )
            for user, http in (("ann", ann), ("bob", bob), ("root", root))
        }
        said = [
            problem_of(bob.get(f"{PATH}/ann/{name}"), 404, "not-found", "name").replace(name, "X")
            for name in ("secret", "absent")
        ]
        deleted = problem_of(bob.delete(f"{PATH}/ann/secret"), 404, "not-found", "name")
        # A further version stays private unless its user says otherwise.
        further = uploaded(ann, OTHER, name="secret")
        public = uploaded(ann, OTHER, name="secret", private=False)
        visible = bob.get(f"{PATH}/ann/secret").json()
        hidden = bob.get(f"{PATH}/ann/secret", params=version)
        ann.delete(f"{PATH}/ann/secret")

    assert seen == {"ann": (True, 200, 200), "bob": (False, 404, 404), "root": (True, 200, 200)}
    assert said[0] == said[1]
    assert "or it is not yours to read" in deleted
    assert (further["private"], public["private"], public["created"]) == (True, False, False)
    assert [one["version"] for one in visible["versions"]] == [public["version"]]
    assert hidden.status_code == 404


def test_what_is_deleted_is_gone_and_can_be_uploaded_again(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob, lab.http("root") as root:
        first = uploaded(ann, SHORT, name="gone")
        second = uploaded(ann, OTHER, name="gone")
        refused = problem_of(bob.delete(f"{PATH}/ann/gone"), 403, "forbidden", None)
        one = ann.delete(f"{PATH}/ann/gone", params={"version": second["version"]})
        left = ann.get(f"{PATH}/ann/gone").json()["versions"]
        rest = root.delete(f"{PATH}/ann/gone")
        absent = ann.get(f"{PATH}/ann/gone")
        again = ann.delete(f"{PATH}/ann/gone")
        anew = uploaded(ann, SHORT, name="gone")
        ann.delete(f"{PATH}/ann/gone")

    assert refused == "only ann and administrators may delete ann/gone"
    assert (one.status_code, one.content, rest.status_code) == (204, b"", 204)
    assert [version["version"] for version in left] == [first["version"]]
    assert (absent.status_code, again.status_code) == (404, 404)
    assert anew["created"]


def test_pages_and_filters_lead_through_the_list(lab: Lab) -> None:
    with lab.http("cleo") as cleo:
        for number in range(5):
            uploaded(cleo, SHORT, name=f"n{number}")
        pages: list[list[str]] = []
        before: str | None = None
        while before is not None or not pages:
            query: dict[str, Any] = {
                "user": "cleo",
                "limit": 2,
                **({} if before is None else {"before": before}),
            }
            answer = cleo.get(PATH, params=query).json()
            pages.append([one["name"] for one in answer["implementations"]])
            before = answer["next"]
        of_others = names(cleo, op="isin")
        everything = cleo.get(PATH, params={"op": "permute", "limit": 1}).json()
        following = cleo.get(PATH, params={"before": everything["next"]}).json()

    assert pages == [["cleo/n4", "cleo/n3"], ["cleo/n2", "cleo/n1"], ["cleo/n0"]]
    assert of_others == []
    shipped = [one for one in everything["implementations"] if one["kind"] == "shipped"]
    assert [one["name"] for one in shipped] == ["warpcall", "torch", "torch.compile", "copy"]
    assert all(one["doc"] and one["user"] is None for one in shipped)
    assert "shipped" not in {one["kind"] for one in following["implementations"]}


def test_a_user_may_store_only_so_many(lab: Lab) -> None:
    with lab.http("dora") as dora:
        for number in range(6):
            uploaded(dora, SHORT, name=f"n{number}")
        said = problem_of(upload(dora, SHORT, name="more"), 413, "too-large", "source")
        again = uploaded(dora, SHORT, name="n5")
        dora.delete(f"{PATH}/dora/n5")
        instead = uploaded(dora, SHORT, name="more")

    assert said == (
        "dora has 6 versions of implementations and problems stored, at most 6 are allowed; delete "
        "some"
    )
    assert (again["created"], instead["created"]) == (False, True)


def test_a_name_is_for_one_op(lab: Lab) -> None:
    with lab.http("emil") as emil:
        uploaded(emil, SHORT, name="one")
        said = problem_of(
            upload(emil, SHORT, op="isin", function="permute", name="one"),
            *(422, "invalid-input", "name"),
        )

    assert said == "emil/one is an implementation of permute; give this one another name"


def test_a_bad_source_is_refused_with_its_line_and_not_stored(lab: Lab) -> None:
    with lab.http("fay") as fay, lab.http("root") as root:
        syntax = upload(fay, "x = 1\ndef permute(x dims):\n    pass\n")
        signature = upload(fay, "def permute(x):\n    pass\n")
        stored = names(fay, user="fay")
        ended = metrics(root)

    said = problem_of(syntax, 422, "invalid-input", "source")
    assert said == "source: line 2: SyntaxError: invalid syntax"
    said = problem_of(signature, 422, "invalid-input", "function")
    assert said.startswith("function: line 1: permute must take the inputs and parameters of")
    assert stored == []
    assert ended['warpcall_upload_checks_total{outcome="refused"}'] >= 2
    assert ended['warpcall_upload_checks_total{outcome="accepted"}'] >= 1
    assert ended["warpcall_upload_checks_unfinished"] == 0
    lines = [line for line in logged(lab.server) if line.get("path") == PATH]
    assert {line["user"] for line in lines} >= {"fay"}
    assert "SyntaxError" not in lab.server.log.read_text(), (
        "sources are not the operator's business"
    )
