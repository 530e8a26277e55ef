"""Uploads, lists and deletions of problems, by both clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.flavours import Flavour
from tests.client.problems.answers import DECLARATION, SOURCE
from tests.client.problems.scripted_problems import ProblemsServer
from warpcall import Client, InvalidInput, NotFound


@pytest.fixture
def lab() -> Iterator[ProblemsServer]:
    with ProblemsServer() as server:
        yield server


def row_norm(x: Any) -> Any:
    """A function that a test uploads; its source is this file."""
    return x


def test_a_problem_is_added_listed_read_and_removed(
    lab: ProblemsServer, flavour: Flavour, tmp_path: Path
) -> None:
    path = tmp_path / "row_norm.py"
    path.write_text(SOURCE)

    added, again, listed, details, removed = flavour.ask(
        lab,
        lambda gpu: gpu.problems.add(path),
        lambda gpu: gpu.problems.add(str(path)),
        lambda gpu: gpu.problems.list(user="ann", before="n7", limit=5),
        lambda gpu: gpu.problems.get("ann/row-norm"),
        lambda gpu: gpu.problems.remove("ann/row-norm"),
    )

    assert (added.name, added.created) == ("ann/row-norm", True)
    assert (again.version, again.created) == (added.version, False)
    assert [one.name for one in listed.problems] == ["ann/row-norm"]
    assert lab.targets[2].endswith("/v1/problems?user=ann&before=n7&limit=5")
    assert (details.source, details.declaration) == (SOURCE, DECLARATION)
    assert removed is None
    with pytest.raises(NotFound, match="there is no problem 'ann/row-norm'"):
        flavour.ask(lab, lambda gpu: gpu.problems.get("ann/row-norm"))


def test_one_version_is_read_and_removed(lab: ProblemsServer, direct: Flavour) -> None:
    first, _ = direct.ask(
        lab, lambda gpu: gpu.problems.add(SOURCE), lambda gpu: gpu.problems.add(f"{SOURCE}# b\n")
    )
    version = first.version

    latest, earlier, *_ = direct.ask(
        lab,
        lambda gpu: gpu.problems.get("ann/row-norm"),
        lambda gpu: gpu.problems.get(f"ann/row-norm@{version}"),
        lambda gpu: gpu.problems.remove("ann/row-norm", version),
    )

    assert (earlier.source, latest.source) == (SOURCE, f"{SOURCE}# b\n")
    assert [one["sha256"] for one in lab.problems] == [latest.sha256]


def test_what_is_sent_names_only_what_was_given(lab: ProblemsServer, tmp_path: Path) -> None:
    path = tmp_path / "row_norm.py"
    path.write_text(SOURCE)
    sent = []

    with Client(lab.url) as gpu:
        gpu.problems.add(SOURCE)
        sent.append(lab.seen.params)
        gpu.problems.add(path)
        sent.append(lab.seen.params)
        gpu.problems.add(path, name="best", private=True)
        sent.append(lab.seen.params)
        gpu.problems.add(row_norm)

    assert sent == [
        {"source": SOURCE},
        {"source": SOURCE},
        {"source": SOURCE, "name": "best", "private": True},
    ]
    assert lab.seen.params == {"source": Path(__file__).read_text()}


def test_a_name_that_none_can_have_is_refused_here(lab: ProblemsServer) -> None:
    with Client(lab.url) as gpu:
        for name in ("row-norm", "ann/", "ann/../x"):
            with pytest.raises(InvalidInput, match="name must be like ann/row-norm") as refused:
                gpu.problems.get(name)
            assert refused.value.field == "name"

    assert lab.targets == []


def test_history_is_of_torch_if_the_op_is_a_problem(lab: ProblemsServer, direct: Flavour) -> None:
    shipped, problem, named = direct.ask(
        lab,
        lambda gpu: gpu.jobs.history("permute x=F32[8]"),
        lambda gpu: gpu.jobs.history("ann/row-norm x=F32[8]"),
        lambda gpu: gpu.jobs.history("ann/row-norm x=F32[8]", implementation="ann/fast"),
    )

    assert (shipped.op, shipped.implementation) == ("permute", "warpcall")
    assert (problem.op, problem.implementation) == ("ann/row-norm", "torch")
    assert (named.op, named.implementation) == ("ann/row-norm", "ann/fast")
