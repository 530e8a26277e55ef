"""Groups in the SDK: what is sent, how long it waits, and what the table says."""

from __future__ import annotations

import json
from dataclasses import MISSING
from typing import Any

import pytest

from tests.client.flavours import Flavour
from tests.client.job_answers import AT, JOB
from tests.client.scripted import Script, ScriptedServer, Visit
from tests.client.test_jobs import answers
from warpcall import Client, GroupResults, InvalidInput, JobRequest, TimedOut
from warpcall._cli.files import UsageError
from warpcall._cli.groups import gpus_of
from warpcall._jobs.markdown import group_markdown
from warpcall._jobs.parse import parse
from warpcall._jobs.progress import GroupBars
from warpcall.groups import GroupPart, typical
from warpcall.jobs import JobInfo, lacking, with_article
from warpcall.jobs.results import Measurement

ENDED = {**JOB, "id": "a1", "state": "succeeded", "cases_done": 1, "finished_at": AT, "gpu": "H100"}
WAITS = {**JOB, "id": "b2", "state": "queued", "gpu": "H200", "has_device": False}
RUNS = {**WAITS, "state": "running", "has_device": True}


def group(*jobs: dict[str, Any] | None) -> dict[str, Any]:
    parts = [{"gpu": gpu, "job": job} for gpu, job in zip(("H100", "H200"), jobs, strict=True)]
    return {"id": "g1", "user": "alice", "created_at": AT, "parts": parts}


def measured(us: float | None, position: int = 0, name: str = "mine", **change: Any) -> Any:
    ci = {"ci_low_us": us and us * 0.9, "ci_high_us": us and us * 1.2}
    times = {
        name: None
        for name, field in Measurement.__dataclass_fields__.items()
        if field.default is MISSING and field.default_factory is MISSING
    }
    return {
        **times,
        "position": position,
        "case": f"case {position}",
        "implementation": name,
        "status": "ok",
        "median_us": us,
        "n": 3,
        "tags": [],
        "verified": False,
        **ci,
        **change,
    }


def row(*times: Any, position: int = 0, name: str = "mine") -> dict[str, Any]:
    found = [
        one if one is None or isinstance(one, dict) else measured(one, position, name)
        for one in times
    ]
    return {
        "position": position,
        "case": f"case {position}",
        "implementation": name,
        "times": found,
    }


def results(*rows: Any, jobs: tuple[Any, Any] = (ENDED, WAITS)) -> dict[str, Any]:
    return {"id": "g1", "parts": group(*jobs)["parts"], "remarks": [], "rows": list(rows)}


def table(*rows: Any, jobs: tuple[Any, Any] = (ENDED, WAITS)) -> GroupResults:
    return parse(GroupResults, results(*rows, jobs=jobs), "results")


def waited(**options: Any) -> Any:
    """A question that waits for the group g1."""

    async def later(gpu: Any) -> Any:
        return await (await gpu.jobs.group("g1")).wait(**options)

    return lambda gpu: (
        gpu.jobs.group("g1").wait(**options) if isinstance(gpu, Client) else later(gpu)
    )


def test_a_group_is_submitted_with_its_models_beside_the_job(flavour: Flavour) -> None:
    bodies: list[Any] = []

    def script(visit: Visit) -> None:
        bodies.append((visit.target, json.loads(visit.body())))
        answers({**group(ENDED, WAITS), "reused": False}, 201)(visit)

    request = JobRequest("permute", cases=[{"shape": [8], "dtype": "fp32"}])
    with ScriptedServer(script) as server:
        (found,) = flavour.ask(
            server, lambda gpu: gpu.jobs.submit_group(request, gpus=["H100", "H200"], fresh=True)
        )

    ((path, sent),) = bodies
    assert path.endswith("/v1/groups")
    assert sent == {
        "gpus": ["H100", "H200"],
        "job": {"op": "permute", "cases": [{"shape": [8], "dtype": "F32"}], "fresh": True},
    }
    assert [part.job.id for part in found.parts] == ["a1", "b2"]
    assert (found.ended, found.page_url.rpartition("/")[2]) == (True, "g1")


def test_who_waits_does_not_wait_for_a_part_that_no_server_could_run(flavour: Flavour) -> None:
    scripts: list[Script] = [answers(group(RUNS, WAITS)), answers(group(RUNS, WAITS))]
    scripts += [answers(group(ENDED, WAITS)), answers(results(row(2.0, None)))]

    with ScriptedServer(*scripts) as server:
        (found,) = flavour.ask(server, waited())

    assert [one and one.median_us for one in found.rows[0].times] == [2.0, None]
    assert [part.waits_for_device for part in found.parts] == [False, True]


def test_who_waits_no_longer_than_so_long_hears_that_the_parts_go_on(flavour: Flavour) -> None:
    with (
        ScriptedServer(*[answers(group(ENDED, RUNS))] * 5) as server,
        pytest.raises(TimedOut, match="the group g1 had not ended in time; its parts go on"),
    ):
        flavour.ask(server, waited(timeout_s=0.01))


def test_ids_of_jobs_are_none_of_groups() -> None:
    with Client("http://127.0.0.1:1") as gpu:
        for wrong in ("0123456789ab", "g/../x", "g"):
            with pytest.raises(InvalidInput, match="the id of a group must be g and letters"):
                gpu.jobs.group(wrong)
        with pytest.raises(InvalidInput, match="form must be one of csv, json, markdown"):
            gpu.jobs.export("g1", "bencher")


def test_a_job_has_one_model() -> None:
    with pytest.raises(InvalidInput, match="gpu must be one model, got 'H100,H200'"):
        JobRequest("permute", gpu="H100,H200")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [(None, []), ("H100", ["H100"]), ("H100, RTX 4090", ["H100", "RTX 4090"])],
)
def test_models_are_separated_by_commas(text: str | None, gpus: list[str]) -> None:
    assert gpus_of(text) == gpus


@pytest.mark.parametrize("text", ["", "H100,", ",", "H100,H100"])
def test_models_that_are_empty_or_repeated_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--gpu must be models separated by commas, each once"):
        gpus_of(text)


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("H100", "an H100"), ("B200", "a B200"), ("L40S", "an L40S"), ("T4", "a T4"),
     ("RTX 4090", "an RTX 4090"), ("GeForce", "a GeForce"), ("NVIDIA H200", "an NVIDIA H200"),
     ("Acme One", "an Acme One"), ("100", "a 100"), ("80GB", "an 80GB")],
)  # fmt: skip
def test_a_model_has_its_article(gpu: str, said: str) -> None:
    assert with_article(gpu) == said


def test_a_job_without_a_model_waits_for_its_server() -> None:
    job = parse(JobInfo, {**WAITS, "gpu": ""}, "a job")

    assert lacking(job) == "waiting for the server that it asks for"


def test_the_typical_ratio_is_of_the_cases_that_both_models_have() -> None:
    known = {
        (0, "mine"): [None, 2.0, 4.0],
        (1, "mine"): [None, 3.0, 1.5],
        (2, "mine"): [None, 5.0, None],
        (0, "torch"): [None, 1.0, 8.0],
    }

    found = list(typical(known, ["A100", "H100", "H200"]))

    assert [(one.implementation, one.gpu, one.against, one.cases) for one in found] == [
        *(("mine", "H200", "H100", 2), ("torch", "H200", "H100", 1))
    ]
    assert [one.ratio for one in found] == pytest.approx([1.0, 8.0])
    assert found[1].sentence() == (
        "torch on H200 typically takes 8.00x the time that it takes on H100 (1 case)"
    )


def test_times_that_are_no_basis_for_a_verdict_have_no_typical_ratio() -> None:
    both = (ENDED, {**ENDED, "id": "b2", "gpu": "H200"})
    wrong = measured(1.0, status="wrong_result")
    plain = measured(1.0, tags=["plain torch"])

    found = [
        table(row(4.0, one), jobs=both).typical() for one in (wrong, plain, measured(None), 2.0)
    ]

    assert [len(one) for one in found] == [0, 0, 0, 1]
    assert found[3][0].ratio == pytest.approx(0.5)


def test_the_table_has_columns_for_each_model_and_leaves_out_those_that_are_empty() -> None:
    compared = measured(8.0, name="torch", ratio=2.0, verdict="slower")
    failed = measured(None, position=1, status="wrong_result", error="max error 3")
    failed["sanitizer"] = {"memcheck": "0 errors"}
    rows = (row(4.0, None), row(compared, None, name="torch"), row(failed, None, position=1))

    lines = str(table(*rows)).splitlines()
    markdown = group_markdown(table(*rows)).splitlines()

    assert [line.split() for line in lines[1:7]] == [
        ["H100", "±", "ratio", "verdict", "H200"],
        ["case", "0"],
        ["mine", "4", "20.0%", "waiting"],
        ["torch", "8", "20.0%", "2.000", "slower", "waiting"],
        ["case", "1"],
        ["mine", "wrong_result", "waiting"],
    ]
    assert "H200: waiting for an H200, which no server that runs has; b2 begins" in "\n".join(lines)
    assert "H100: sanitizer: mine, case 1: memcheck: 0 errors" in lines
    assert lines[-1] == "mine on H100, case 1: max error 3"
    assert markdown[0] == "`permute` on H100, H200, group g1"
    assert "| case 0 | torch | 8.00 | 2.000 | slower |  |  |  |" in markdown
    assert "| case 1 | mine | wrong_result |  | none: wrong_result |  |  |  |" not in markdown


def test_rows_for_pandas_name_the_model_and_the_job() -> None:
    (found,) = table(row(4.0, None)).to_rows()

    assert (found["gpu"], found["job"], found["median_us"]) == ("H100", "a1", 4.0)


def test_a_group_has_a_bar_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = GroupBars(visible=True)
    parts = [parse(GroupPart, part, "a part") for part in group(ENDED, WAITS)["parts"]]
    parts.append(GroupPart(gpu="B200", job=None))

    bars.show(parts)
    assert bars._progress is not None
    shown = [
        (task.description, task.completed, task.fields["what"]) for task in bars._progress.tasks
    ]
    bars.close()

    assert shown == [
        ("H100", 1, "succeeded"),
        ("H200", 0, "waiting for an H200"),
        ("B200", 0, "private to another user"),
    ]
    assert bars._progress is None
