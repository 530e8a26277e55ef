"""Problems over HTTP: stored in versions, listed, read, deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.databases import new_database
from tests.service.requests import problem_of
from tests.service.uploads.problem_sources import ROW_NORM, SCALE, THRICE
from tests.service.uploads.requests import (
    PATH,
    PROBLEMS,
    Lab,
    add_problem,
    added_problem,
    names,
    problem_names,
    running_lab,
    upload,
    uploaded,
)
from tests.service.uploads.sources import SHORT

pytestmark = pytest.mark.slow

MINE = "def scale(x):\n    return x + x\n"


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = new_database(request, tmp_path_factory.mktemp("lab"))
    users = ("ann@lab.org", "ann", "bob", "cleo", "dora")
    database.key("reader", "call")
    with running_lab(database, *users, WARPCALL_USER_MAX_UPLOADS="5") as running:
        yield Lab(running.server, {**running.keys, "reader": database.key("reader", "call")})


def test_a_problem_is_described_and_can_be_read(lab: Lab) -> None:
    with lab.http("ann@lab.org") as ann, lab.http("reader") as reader:
        found = added_problem(ann, ROW_NORM)
        details = reader.get(f"{PROBLEMS}/ann@lab.org/row-norm").json()
        listed = reader.get(PROBLEMS, params={"user": "ann@lab.org"}).json()

    sha256 = hashlib.sha256(ROW_NORM.encode()).hexdigest()
    known: dict[str, Any] = {
        "name": "ann@lab.org/row-norm",
        "doc": "Row norm: each row divided by its Euclidean length.",
        "user": "ann@lab.org",
        "version": sha256[:12],
        "sha256": sha256,
        "private": False,
        "nbytes": len(ROW_NORM),
        "created_at": found["created_at"],
        "inputs": ["x"],
        "params": ["eps"],
        "sizes": ["rows", "columns"],
    }
    assert found == {**known, "created": True}
    assert listed == {"problems": [known], "next": None}
    version = {name: known[name] for name in ("version", "sha256", "created_at", "nbytes")}
    declaration = details.pop("declaration")
    assert details == {**known, "source": ROW_NORM, "versions": [version]}
    assert declaration["name"] == "ann@lab.org/row-norm"
    assert declaration["source_sha256"] == sha256
    assert declaration["dtypes"] == ["F32", "BF16"]
    assert declaration["description"].endswith("\n\nMore text.")
    assert declaration["inputs"][0]["dtypes"] == ["F32", "BF16"]
    assert declaration["outputs"][0]["name"] == "out"
    assert declaration["params"][0]["schema"] == {
        "type": "number",
        "description": "added below the root",
        "default": 1e-6,
    }
    assert declaration["sizes"][0] == {
        "name": "rows",
        "doc": "number of rows",
        "default": 16,
        "minimum": 1,
        "choices": [],
    }


def test_the_same_source_again_is_found_and_the_last_one_uploaded_is_the_latest(lab: Lab) -> None:
    with lab.http("ann") as ann:
        first = added_problem(ann, SCALE)
        again = added_problem(ann, SCALE)
        named = added_problem(ann, SCALE, name="other")
        second = added_problem(ann, THRICE, name="scale")
        latest = ann.get(f"{PROBLEMS}/ann/scale").json()
        older = ann.get(f"{PROBLEMS}/ann/scale", params={"version": first["sha256"][:8]}).json()
        back = added_problem(ann, SCALE)
        now = ann.get(f"{PROBLEMS}/ann/scale").json()
        for name in ("scale", "other"):
            ann.delete(f"{PROBLEMS}/ann/{name}")

    assert (first["name"], named["name"]) == ("ann/scale", "ann/other")
    assert (first["created"], again["created"], named["created"]) == (True, False, True)
    assert {**again, "created": True} == first == {**back, "created": True}
    assert [latest["version"], older["version"]] == [second["version"], first["version"]]
    assert [one["version"] for one in now["versions"]] == [first["version"], second["version"]]


def test_a_private_problem_does_not_exist_for_others(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob, lab.http("root") as root:
        added_problem(ann, SCALE, name="secret", private=True)
        seen = {
            user: (
                "ann/secret" in problem_names(http),
                http.get(f"{PROBLEMS}/ann/secret").status_code,
            )
            for user, http in (("ann", ann), ("bob", bob), ("root", root))
        }
        said = [
            problem_of(bob.get(f"{PROBLEMS}/ann/{name}"), 404, "not-found", "name")
            for name in ("secret", "absent")
        ]
        deleted = bob.delete(f"{PROBLEMS}/ann/secret").status_code
        as_op = [
            problem_of(
                upload(bob, MINE, op=f"ann/{name}", function="scale"), 422, "invalid-input", "op"
            )
            for name in ("secret", "absent")
        ]
        mine = uploaded(ann, MINE, op="ann/secret", function="scale", name="mine")
        others = names(bob, user="ann")
        further = added_problem(ann, THRICE, name="secret")
        for path in (f"{PROBLEMS}/ann/secret", f"{PATH}/ann/mine"):
            ann.delete(path)

    assert seen == {"ann": (True, 200), "bob": (False, 404), "root": (True, 200)}
    assert said[0] == "there is no problem 'ann/secret', or it is not yours to read"
    assert [text.replace("absent", "secret") for text in said] == [said[0]] * 2
    assert deleted == 404
    assert [text.replace("absent", "secret") for text in as_op] == [as_op[0]] * 2
    assert "or it is not yours to read" in as_op[0]
    assert (mine["private"], further["private"]) == (True, True)
    assert others == []


def test_an_implementation_of_a_problem_is_checked_by_its_declaration(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        added_problem(ann, SCALE, name="twice")
        mine = uploaded(bob, MINE, op="ann/twice", function="scale", name="mine")
        wrong = upload(bob, SHORT, op="ann/twice", function="permute")
        version = upload(bob, MINE, op=f"ann/twice@{'0' * 12}", function="scale")
        absent = upload(bob, MINE, op="ann/twice")
        listed = bob.get(PATH, params={"op": "ann/twice"}).json()["implementations"]
        ann.delete(f"{PROBLEMS}/ann/twice")
        left = names(bob, op="ann/twice")
        bob.delete(f"{PATH}/bob/mine")

    assert (mine["op"], mine["private"]) == ("ann/twice", False)
    said = problem_of(wrong, 422, "invalid-input", "function")
    assert said.startswith(
        "function: line 1: permute must take the inputs and parameters of ann/twice by name: x; it "
    )
    assert "or a problem without its version" in problem_of(version, 422, "invalid-input", "op")
    assert "it has no function twice" in problem_of(absent, 422, "invalid-input", "function")
    shipped = [one["name"] for one in listed if one["kind"] == "shipped"]
    assert shipped == ["torch", "torch.compile", "copy"]
    assert left == ["bob/mine"], "implementations stay when their problem is deleted"


def test_only_its_user_and_administrators_delete_a_problem(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob, lab.http("root") as root:
        first = added_problem(ann, SCALE, name="gone")
        second = added_problem(ann, THRICE, name="gone")
        refused = problem_of(bob.delete(f"{PROBLEMS}/ann/gone"), 403, "forbidden", None)
        one = ann.delete(f"{PROBLEMS}/ann/gone", params={"version": second["version"]})
        left = ann.get(f"{PROBLEMS}/ann/gone").json()["versions"]
        rest = root.delete(f"{PROBLEMS}/ann/gone")
        absent = ann.get(f"{PROBLEMS}/ann/gone")

    assert refused == "only ann and administrators may delete ann/gone"
    assert (one.status_code, rest.status_code, absent.status_code) == (204, 204, 404)
    assert [version["version"] for version in left] == [first["version"]]


def test_a_key_of_another_role_adds_no_problem(lab: Lab) -> None:
    with lab.http("reader") as reader:
        problem_of(add_problem(reader, SCALE), 403, "forbidden", None)
        problem_of(reader.delete(f"{PROBLEMS}/ann/scale"), 403, "forbidden", None)


def test_pages_and_filters_lead_through_the_list(lab: Lab) -> None:
    with lab.http("cleo") as cleo:
        for number in range(3):
            added_problem(cleo, SCALE, name=f"n{number}")
        first = cleo.get(PROBLEMS, params={"user": "cleo", "limit": 2}).json()
        rest = cleo.get(PROBLEMS, params={"user": "cleo", "before": first["next"]}).json()
        nobody = problem_names(cleo, user="nobody")

    assert [one["name"] for one in first["problems"]] == ["cleo/n2", "cleo/n1"]
    assert ([one["name"] for one in rest["problems"]], rest["next"]) == (["cleo/n0"], None)
    assert nobody == []


def test_problems_and_implementations_share_a_quota(lab: Lab) -> None:
    with lab.http("dora") as dora:
        for number in range(3):
            uploaded(dora, SHORT, name=f"n{number}")
        for source in (SCALE, THRICE):
            added_problem(dora, source, name="scale")
        refused = [
            problem_of(answer, 413, "too-large", "source")
            for answer in (add_problem(dora, ROW_NORM), upload(dora, SHORT, name="more"))
        ]
        dora.delete(f"{PROBLEMS}/dora/scale", params={"version": _sha256(SCALE)})
        instead = uploaded(dora, SHORT, name="more")

    said = "dora has 5 versions of implementations and problems stored, at most 5 are allowed; "
    assert refused == [f"{said}delete some"] * 2
    assert instead["created"]


def _sha256(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
