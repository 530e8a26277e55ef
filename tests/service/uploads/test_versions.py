"""Implementations and problems over HTTP: stored in versions, listed, read, deleted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.service.databases import Database, new_database
from tests.service.requests import logged, metrics, problem_of
from tests.service.uploads.problem_sources import ROW_NORM, SCALE, THRICE
from tests.service.uploads.requests import (
    IMPLEMENTATION,
    PATH,
    PROBLEM,
    PROBLEMS,
    Kind,
    Lab,
    add_problem,
    added_problem,
    names,
    running_lab,
    upload,
    uploaded,
)
from tests.service.uploads.sources import PLAIN, SHORT

pytestmark = pytest.mark.slow

MINE = "def scale(x):\n    return x + x\n"

of_both_kinds = pytest.mark.parametrize(
    "kind", [IMPLEMENTATION, PROBLEM], ids=lambda kind: kind.name
)


@contextmanager
def lab_of(database: Database) -> Iterator[Lab]:
    users = ("ann@lab.org", "ann", "bob", "cleo", "dora", "emil", "fay")
    reader = database.key("reader", "call")
    with running_lab(database, *users, WARPCALL_USER_MAX_UPLOADS="6") as running:
        yield Lab(running.server, {**running.keys, "reader": reader})


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def lab_on_both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """For what depends on queries that `test_database` does not make."""
    with lab_of(new_database(request, tmp_path_factory.mktemp("both"))) as lab:
        yield lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    settings = {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("lab"))}
    with lab_of(Database("sqlite", settings)) as lab:
        yield lab


def test_an_implementation_is_described_and_can_be_read(lab: Lab) -> None:
    with lab.http("ann@lab.org") as ann, lab.http("bob") as bob:
        found = uploaded(ann, PLAIN, name="mine.v1")
        details = bob.get(f"{PATH}/ann@lab.org/mine.v1").json()
        listed = bob.get(PATH, params={"user": "ann@lab.org"}).json()

    sha256 = _sha256(json.dumps(["permute", "permute", PLAIN]))
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
        "verified": False,
        "language": found["language"],
    }
    assert found == {**known, "created": True}
    version = {name: known[name] for name in ("version", "sha256", "created_at", "nbytes")}
    own = {"source": PLAIN, "versions": [version], "odd_cases": [], "launches": None}
    own |= {"entry": None, "files": []}
    assert details == {**known, **own}
    assert listed == {"implementations": [known], "errors": [], "next": None}


def test_a_problem_is_described_and_can_be_read(lab: Lab) -> None:
    with lab.http("ann@lab.org") as ann, lab.http("reader") as reader:
        found = added_problem(ann, ROW_NORM)
        details = reader.get(f"{PROBLEMS}/ann@lab.org/row-norm").json()
        listed = reader.get(PROBLEMS, params={"user": "ann@lab.org"}).json()

    sha256 = _sha256(ROW_NORM)
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


@of_both_kinds
def test_the_same_source_again_is_found_and_the_last_one_uploaded_is_the_latest(
    kind: Kind, lab_on_both: Lab
) -> None:
    path, (source, other) = f"{kind.path}/ann/{kind.default}", kind.sources
    with lab_on_both.http("ann") as ann:
        first = kind.uploaded(ann, source)
        again = kind.uploaded(ann, source)
        by_name = kind.uploaded(ann, source, name=kind.default)
        elsewhere = kind.uploaded(ann, source, name="other")
        second = kind.uploaded(ann, other, name=kind.default)
        latest = ann.get(path).json()
        older = ann.get(path, params={"version": first["sha256"][:8]}).json()
        back = kind.uploaded(ann, source)
        now = ann.get(path).json()
        for name in (kind.default, "other"):
            ann.delete(f"{kind.path}/ann/{name}")

    assert (first["name"], elsewhere["name"]) == (f"ann/{kind.default}", "ann/other")
    assert (first["created"], elsewhere["created"], second["created"]) == (True, True, True)
    assert again == by_name == back == {**first, "created": False}
    assert [latest["version"], older["version"]] == [second["version"], first["version"]]
    assert [one["version"] for one in latest["versions"]] == [second["version"], first["version"]]
    assert [one["version"] for one in now["versions"]] == [first["version"], second["version"]]


@of_both_kinds
def test_a_private_one_does_not_exist_for_others(kind: Kind, lab_on_both: Lab) -> None:
    path, (source, other) = f"{kind.path}/ann/secret", kind.sources
    with (
        lab_on_both.http("ann") as ann,
        lab_on_both.http("bob") as bob,
        lab_on_both.http("root") as root,
    ):
        secret = kind.uploaded(ann, source, name="secret", private=True)
        version = {"version": secret["version"]}
        seen = {
            user: (
                "ann/secret" in kind.names(http),
                http.get(path).status_code,
                http.get(path, params=version).status_code,
            )
            for user, http in (("ann", ann), ("bob", bob), ("root", root))
        }
        said = [
            problem_of(answer, 404, "not-found", "name")
            for answer in (bob.get(path), bob.delete(path), bob.get(f"{kind.path}/ann/absent"))
        ]
        # A further version stays private unless its user says otherwise.
        further = kind.uploaded(ann, other, name="secret")
        public = kind.uploaded(ann, other, name="secret", private=False)
        visible = bob.get(path).json()
        hidden = bob.get(path, params=version)
        ann.delete(path)

    assert seen == {"ann": (True, 200, 200), "bob": (False, 404, 404), "root": (True, 200, 200)}
    hint = "or it is not yours to read"
    assert said == [
        f"there is no {kind.name} 'ann/{name}', {hint}" for name in ("secret", "secret", "absent")
    ]
    assert (further["private"], public["private"], public["created"]) == (True, False, False)
    assert [one["version"] for one in visible["versions"]] == [public["version"]]
    assert hidden.status_code == 404


@of_both_kinds
def test_what_is_deleted_is_gone_and_can_be_uploaded_again(kind: Kind, lab: Lab) -> None:
    path, (source, other) = f"{kind.path}/ann/gone", kind.sources
    with lab.http("ann") as ann, lab.http("bob") as bob, lab.http("root") as root:
        first = kind.uploaded(ann, source, name="gone")
        second = kind.uploaded(ann, other, name="gone")
        refused = problem_of(bob.delete(path), 403, "forbidden", None)
        one = ann.delete(path, params={"version": second["version"]})
        left = ann.get(path).json()["versions"]
        rest = root.delete(path)
        absent = ann.get(path)
        again = ann.delete(path)
        anew = kind.uploaded(ann, source, name="gone")
        ann.delete(path)

    assert refused == "only ann and administrators may delete ann/gone"
    assert (one.status_code, one.content, rest.status_code) == (204, b"", 204)
    assert [version["version"] for version in left] == [first["version"]]
    assert (absent.status_code, again.status_code) == (404, 404)
    assert anew["created"]


@of_both_kinds
def test_a_key_of_another_role_uploads_and_deletes_nothing(kind: Kind, lab: Lab) -> None:
    with lab.http("reader") as reader:
        problem_of(kind.upload(reader, kind.sources[0]), 403, "forbidden", None)
        problem_of(reader.delete(f"{kind.path}/ann/scale"), 403, "forbidden", None)


@of_both_kinds
def test_pages_and_filters_lead_through_the_list(kind: Kind, lab_on_both: Lab) -> None:
    with lab_on_both.http("cleo") as cleo:
        for number in range(5):
            kind.uploaded(cleo, kind.sources[0], name=f"n{number}")
        pages: list[list[str]] = []
        before: str | None = None
        while before is not None or not pages:
            query: dict[str, Any] = {
                "user": "cleo",
                "limit": 2,
                **({} if before is None else {"before": before}),
            }
            answer = cleo.get(kind.path, params=query).json()
            pages.append([one["name"] for one in answer[f"{kind.name}s"]])
            before = answer["next"]
        nobody = kind.names(cleo, user="nobody")
        for number in range(5):
            cleo.delete(f"{kind.path}/cleo/n{number}")

    assert pages == [["cleo/n4", "cleo/n3"], ["cleo/n2", "cleo/n1"], ["cleo/n0"]]
    assert nobody == []


def test_the_first_page_begins_with_what_is_not_uploaded(lab_on_both: Lab) -> None:
    with lab_on_both.http("cleo") as cleo:
        for name in ("a", "b"):
            uploaded(cleo, SHORT, name=name)
        of_others = names(cleo, op="isin")
        everything = cleo.get(PATH, params={"op": "permute", "limit": 1}).json()
        following = cleo.get(PATH, params={"before": everything["next"]}).json()
        for name in ("a", "b"):
            cleo.delete(f"{PATH}/cleo/{name}")

    assert of_others == []
    shipped = [one for one in everything["implementations"] if one["kind"] == "shipped"]
    assert [one["name"] for one in shipped] == ["warpcall", "torch", "torch.compile", "copy"]
    assert all(one["doc"] and one["user"] is None for one in shipped)
    assert "shipped" not in {one["kind"] for one in following["implementations"]}


def test_a_user_may_store_only_so_many_of_both_kinds_together(lab: Lab) -> None:
    with lab.http("dora") as dora:
        for number in range(4):
            uploaded(dora, SHORT, name=f"n{number}")
        for source in (SCALE, THRICE):
            added_problem(dora, source, name="scale")
        refused = [
            problem_of(answer, 413, "too-large", "source")
            for answer in (add_problem(dora, ROW_NORM), upload(dora, SHORT, name="more"))
        ]
        again = uploaded(dora, SHORT, name="n3")
        dora.delete(f"{PROBLEMS}/dora/scale", params={"version": _sha256(SCALE)})
        instead = uploaded(dora, SHORT, name="more")
        dora.delete(f"{PATH}/dora/n3")
        problem = added_problem(dora, SCALE, name="scale")

    said = "dora has 6 versions of implementations and problems stored, at most 6 are allowed by "
    assert refused == [f"{said}the quota user_max_uploads; delete some"] * 2
    assert (again["created"], instead["created"], problem["created"]) == (False, True, True)


def test_a_private_problem_is_no_op_for_others(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        added_problem(ann, SCALE, name="secret", private=True)
        as_op = [
            problem_of(
                upload(bob, MINE, op=f"ann/{name}", function="scale"), 422, "invalid-input", "op"
            )
            for name in ("secret", "absent")
        ]
        mine = uploaded(ann, MINE, op="ann/secret", function="scale", name="mine")
        others = names(bob, user="ann")
        for path in (f"{PROBLEMS}/ann/secret", f"{PATH}/ann/mine"):
            ann.delete(path)

    assert [text.replace("absent", "secret") for text in as_op] == [as_op[0]] * 2
    assert "or it is not yours to read" in as_op[0]
    assert mine["private"]
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


def _sha256(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
