"""What a new user finds with dir and help, sees in a notebook, and may type in several ways."""

from __future__ import annotations

import dataclasses
import json
import pydoc
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import warpcall
from tests.client.scripted import ScriptedServer, well
from warpcall import AsyncClient, AsyncProgram, Client, InvalidInput, JobRequest, Program
from warpcall._base_client import BaseClient
from warpcall._tensors import BaseStoredTensor
from warpcall.dtypes import DTYPES, dtype_code
from warpcall.jobs.results import History, HistoryPoint, Measurement, Results

NOTHING: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Measurement))
MEASURED = Measurement(
    **NOTHING
    | {"case": "<script>", "implementation": "warpcall", "status": "ok", "median_us": 1.23456}
    | {
        "position": 0,
        "n": 9,
        "tags": ["unstable"],
        "why_undecided": "",
        "verified": False,
        "sanitizer": {},
    }
)
RESULTS = Results(
    id="j1",
    state="succeeded",
    environment=None,
    fingerprint=None,
    remarks=[],
    measurements=[MEASURED],
    cases=[],
)


def test_dir_and_help_show_all_public_names() -> None:
    text = pydoc.plain(pydoc.render_doc(warpcall))

    assert {"Client", "AsyncClient", "JobRequest", "Results", "Busy"} <= set(dir(warpcall))
    assert set(warpcall.__all__) <= set(dir(warpcall))
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib"} & set(dir(warpcall))
    assert "errors" in dir(warpcall)
    for name in ("class Client", "class Results", "class InvalidInput"):
        assert name in text
    for name in warpcall.__all__:
        assert getattr(warpcall, name).__doc__


def test_a_fresh_interpreter_finds_them_too() -> None:
    program = "import warpcall; print('Client' in dir(warpcall), warpcall.JobRequest.__name__)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "True JobRequest\n"


def test_help_of_an_op_stands_alone() -> None:
    text = pydoc.plain(pydoc.render_doc(Client.permute))

    for part in ("Reorder the dims", "Equivalent to", "dims:", "timeout_s:", "Returns:"):
        assert part in text


def test_results_are_tables_and_plain_values() -> None:
    page = RESULTS._repr_html_()

    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "1.235" in page
    assert "ratio" not in page  # no row has one
    assert repr(RESULTS) == "Results of 1 row: see to_rows() or to_pandas()"
    assert RESULTS.to_rows() == [MEASURED.to_dict()]
    assert json.loads(json.dumps(RESULTS.to_dict()))["measurements"][0]["median_us"] == 1.23456


def test_a_history_has_the_fields_of_each_measurement() -> None:
    texts: dict[str, Any] = {field.name: "x" for field in dataclasses.fields(HistoryPoint)}
    point = HistoryPoint(**texts | {"changed": [], "measurement": MEASURED})
    history = History(op="permute", implementation="warpcall", case="c", points=[point] * 300)

    assert history.to_rows()[0]["median_us"] == 1.23456
    assert history.to_rows()[0]["job"] == "x"
    assert "and 100 more rows" in history._repr_html_()


def test_results_are_a_data_frame_of_pandas() -> None:
    frame = RESULTS.to_pandas()

    assert list(frame.columns) == [field.name for field in dataclasses.fields(Measurement)]
    assert frame["median_us"].tolist() == [1.23456]
    assert frame[frame.implementation == "warpcall"]["tags"].tolist() == [["unstable"]]


def test_without_pandas_to_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ImportError, match="pip install pandas"):
        RESULTS.to_pandas()


def test_an_answer_shows_its_outputs_in_a_notebook() -> None:
    with ScriptedServer(well) as server, Client(server.url) as gpu:
        answer: Any = gpu.call("permute", {"x": np.zeros((2, 3), np.float32)}, {"dims": (1, 0)})

    page = answer._repr_html_()

    assert "float32" in page
    assert "(3, 2)" in page
    assert "queue 0.5 ms" in page


def test_a_request_for_a_job_says_what_it_asks_for() -> None:
    request = JobRequest("permute", sweep={"dtypes": [torch.bfloat16]}, fresh=True)

    assert request.to_dict() == {"op": "permute", "sweep": {"dtypes": ["BF16"]}, "fresh": True}
    assert repr(request) == "JobRequest('permute', sweep={'dtypes': ['BF16']}, fresh=True)"
    with pytest.raises(InvalidInput, match=r"quick, standard, publish or check, got 'fast'"):
        JobRequest("permute", precision="fast")  # type: ignore[arg-type]


def test_a_request_is_submitted_with_the_options_that_replace_its_fields() -> None:
    bodies: list[Any] = []

    def take(visit: Any) -> None:
        bodies.append(json.loads(visit.body()))
        visit.answer(422, b'{"detail": "seen"}', {"Content-Type": "application/problem+json"})

    request = JobRequest("permute", cases=[{"shape": [2], "dtype": np.int8}], note="first")
    with ScriptedServer(take) as server, Client(server.url) as gpu:
        with pytest.raises(InvalidInput, match="seen"):
            gpu.jobs.submit(request, note="second")
        with pytest.raises(InvalidInput, match="seen"):
            gpu.jobs.preview(request)

    case = {"shape": [2], "dtype": "I8"}
    assert bodies == [
        {"op": "permute", "cases": [case], "note": "second"},
        {"op": "permute", "cases": [case], "note": "first"},
    ]


def test_all_types_of_requests_and_results_are_dataclasses() -> None:
    kinds = [getattr(warpcall, name) for name in warpcall.__all__ if name != "launches"]
    others = (Exception, list, BaseClient, BaseStoredTensor, Program, AsyncProgram)

    for kind in kinds:
        assert dataclasses.is_dataclass(kind) or issubclass(kind, others), kind


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("warpcall.Cl", "Client"),
        ("warpcall.Job", "JobRequest"),
        ("gpu.perm", "permute"),
        ("gpu.jobs.sub", "submit"),
        ("gpu.o", "ops"),
        ("gpu.permute(", "dims="),
        ("gpu.explain(", "texts="),
        ("gpu.jobs.board(", "device="),
        ("warpcall.JobRequest(", "precision="),
    ],
)
def test_ipython_completes_names_and_arguments(typed: str, expected: str) -> None:
    shell = InteractiveShell.instance()
    with Client("http://127.0.0.1:1") as gpu:
        shell.user_ns.update(warpcall=warpcall, gpu=gpu)

        with provisionalcompleter():
            found = [one.text for one in shell.Completer.completions(typed, len(typed))]

    assert expected in [text.rpartition(".")[2] for text in found]


def test_a_choice_that_does_not_exist_is_refused_at_once_with_the_choices() -> None:
    wrong: Any = {"precision": "fast"}

    with Client("http://127.0.0.1:1", retries=0) as gpu:
        with pytest.raises(InvalidInput, match=r"quick, standard, publish or check, got 'fast'"):
            gpu.jobs.submit("permute", **wrong)
        with pytest.raises(InvalidInput, match=r"priority must be high, normal or low"):
            gpu.jobs.preview("permute", priority="urgent")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"state must be queued, .* or interrupted"):
            gpu.jobs.list(state="done")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        *[(spelling, d.code) for d in DTYPES for spelling in (d.code, d.name, d.oip) if spelling],
        *[("bf16", "BF16"), ("fp32", "F32"), ("int64", "I64"), ("uint8", "U8"), ("bool", "BOOL")],
        *[(torch.bfloat16, "BF16"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8_E4M3")],
        *[(np.float32, "F32"), (np.dtype(np.int16), "I16"), (np.dtype(">f8"), "F64")],
        *[(ml_dtypes.bfloat16, "BF16"), (bool, "BOOL"), ("float7", "float7"), (7, 7)],
    ],
)
def test_a_dtype_is_taken_in_all_its_spellings(given: object, code: object) -> None:
    assert dtype_code(given) == code


def test_jobs_take_dtypes_of_torch_and_numpy() -> None:
    bodies: list[Any] = []

    def take(visit: Any) -> None:
        bodies.append(json.loads(visit.body()))
        visit.answer(422, b'{"detail": "seen"}', {"Content-Type": "application/problem+json"})

    case = {"inputs": {"x": {"shape": [2], "dtype": np.int8}}}
    with ScriptedServer(take) as server, Client(server.url) as gpu:
        for request in ({"sweep": {"dtypes": [torch.bfloat16, "fp32"]}}, {"cases": [case]}):
            with pytest.raises(InvalidInput, match="seen"):
                gpu.jobs.submit("permute", **request)

    assert bodies[0]["sweep"]["dtypes"] == ["BF16", "F32"]
    assert bodies[1]["cases"][0]["inputs"]["x"]["dtype"] == "I8"
    assert case["inputs"]["x"]["dtype"] is np.int8


def test_both_clients_have_the_same_methods() -> None:
    public = [{n for n in dir(kind) if not n.startswith("_")} for kind in (Client, AsyncClient)]

    assert public[0] == public[1]
