"""Text of a server cannot control a terminal, and its names cannot leave the output folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tests.client import job_answers
from tests.client.command import Command
from tests.client.flavours import Flavour
from tests.client.implementations.answers import ENVIRONMENT, UPLOADED
from tests.client.scripted import Script, ScriptedServer, Visit, permute
from tests.client.scripted_ops import DECLARED, LANE, OpsServer
from warpcall import JobFailed, Problem, TransportError, WarpcallError
from warpcall._cli.output import console, table_of
from warpcall._jobs.events import MAX_EVENT_BYTES, Parser
from warpcall._jobs.parse import parse
from warpcall._jobs.progress import Bar
from warpcall._text import clean, clean_json
from warpcall.jobs import JobEvent, JobInfo

EVIL = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202etxt.exe\x7f\r\nsecond\u2028line \ud800"
STORED = {
    "dtype": "F32",
    "shape": [1],
    "nbytes": 4,
    "device": EVIL,
    "expires": "2030-01-01T00:00:00+00:00",
}
JOB = {
    **job_answers.DETAILS, "user": EVIL, "op": EVIL, "state": EVIL, "precision": EVIL, "tags": [EVIL],
    "cases_total": 2, "cases_done": 1, "note": EVIL, "reused": EVIL, "first_case": EVIL,
}  # fmt: skip
INFO = {name: JOB[name] for name in job_answers.JOB}
COMPARISON = {
    "a": EVIL, "b": EVIL, "same_environment": False, "rows": [], "only_a": [EVIL], "only_b": [],
    "differences": {EVIL: [EVIL, EVIL]},
}  # fmt: skip
UPLOAD = {
    **UPLOADED, "name": EVIL, "kind": EVIL, "op": EVIL, "doc": EVIL, "version": EVIL, "function": EVIL
}  # fmt: skip
FAILED = {"module": EVIL, "error": EVIL}
HOSTILE_ENVIRONMENT = {
    **ENVIRONMENT, **dict.fromkeys(("python", "torch", "cuda", "device", "uploads", "trouble"), EVIL),
    "tools": {EVIL: EVIL}, "packages": [[EVIL, EVIL]],
}  # fmt: skip


def answers(status: int, payload: Any, **headers: str) -> Script:
    def script(visit: Visit) -> None:
        visit.body()
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        visit.answer(status, body, {"Content-Type": "application/json", **headers})

    return script


def named_evil(tensor: dict[str, Any]) -> bytes:
    """A body with one tensor whose name has control characters."""
    header = json.dumps({EVIL: tensor}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def harmless(text: str) -> bool:
    """Whether a terminal shows each line unchanged."""
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("status", [404, 422, 429, 500, 503])
def test_a_problem_is_one_line_without_control_characters(status: int, flavour: Flavour) -> None:
    members = {"detail": EVIL, "title": EVIL, "field": EVIL, "request_id": EVIL}

    with ScriptedServer(answers(status, members)) as server, pytest.raises(Problem) as caught:
        flavour.ask(server, permute, retries=0)

    problem = caught.value
    texts = (str(problem), problem.detail, problem.field or "", problem.request_id or "")
    assert all(text.isprintable() for text in texts)
    assert r"\x1b[2J" in problem.detail


def test_members_of_a_problem_that_are_no_text_are_passed_over(flavour: Flavour) -> None:
    members = {"detail": {"a": 1}, "field": ["x"], "request_id": 7}

    with ScriptedServer(answers(422, members)) as server, pytest.raises(Problem) as caught:
        flavour.ask(server, permute, retries=0)

    assert (str(caught.value), caught.value.field) == ("the server answered 422", None)


def test_a_problem_is_short_however_long_the_servers_is(flavour: Flavour) -> None:
    long = answers(422, {"detail": "x" * 900_000})

    with ScriptedServer(long) as server, pytest.raises(Problem) as caught:
        flavour.ask(server, permute, retries=0)

    assert len(str(caught.value)) <= 2000


@pytest.mark.parametrize(
    "script",
    [
        answers(500, b"\x1b[2J\xc2\x9b31m"),
        answers(200, b"\x1b[2J"),
        answers(422, {"detail": "no"}, **{"X-Request-Id": "\x1b[2J\x9b"}),
        answers(200, named_evil({"dtype": "F99", "shape": [1], "data_offsets": [0, 4]})),
    ],
    ids=["text", "no-tensors", "header", "tensor-names"],
)
def test_an_error_quotes_a_server_without_its_control_characters(
    script: Script, flavour: Flavour
) -> None:
    with ScriptedServer(script) as server, pytest.raises(WarpcallError) as caught:
        flavour.ask(server, permute, retries=0)

    assert harmless(str(caught.value))
    assert harmless(getattr(caught.value, "request_id", None) or "")


@pytest.mark.parametrize("line", [b"HTTP/1.1 200 \x1b[2J", b"\x1b[2J", b"HTTP/1.1 2\x9b0 OK"])
def test_a_status_line_of_control_characters_is_quoted_safely(
    line: bytes, flavour: Flavour
) -> None:
    def script(visit: Visit) -> None:
        visit.body()
        visit.sock.sendall(line + b"\r\nContent-Length: 2\r\n\r\n{}")

    with ScriptedServer(script) as server, pytest.raises(TransportError) as caught:
        flavour.ask(server, permute, retries=0)

    assert harmless(str(caught.value))


def test_headers_of_an_answer_are_without_control_characters(flavour: Flavour) -> None:
    def script(visit: Visit) -> None:
        visit.body()
        body = safetensors.numpy.save({"out": np.zeros(1)})
        fields = {"X-Warpcall-Device": "\x9b2J", "Server-Timing": "\x9b2J;dur=1"}
        visit.answer(200, body, {**fields, "X-Request-Id": "\x9b2J"})

    x = np.zeros(1)
    with ScriptedServer(script) as server:
        (answer,) = flavour.ask(server, lambda gpu: gpu.call("permute", {"x": x}))

    assert (answer.device, answer.request_id) == (r"Â\x9b2J", r"Â\x9b2J")
    assert list(answer.timing_ms) == [r"Â\x9b2J"]


def test_a_header_that_http_forbids_is_refused_or_escaped(flavour: Flavour) -> None:
    def script(visit: Visit) -> None:
        visit.body()
        body = safetensors.numpy.save({"out": np.zeros(1)})
        visit.answer(200, body, {"X-Warpcall-Device": "\x1b[2J"})

    def device(gpu: Any) -> Any:
        return gpu.call("permute", {"x": np.zeros(1)})

    with ScriptedServer(script) as server:
        try:
            said = flavour.ask(server, device)[0].device
        except TransportError as error:
            said = str(error)

    assert harmless(said)
    assert (said == r"\x1b[2J") == flavour.proxied


def test_a_failed_job_is_described_without_control_characters() -> None:
    job = parse(JobInfo, {**JOB, "exit_class": EVIL, "detail": EVIL}, "a job")

    assert str(JobFailed(job)).isprintable()


@pytest.mark.parametrize("id_", ["", "\x1b[2J", "a; rm -rf ~", "../x", "x" * 65, 7, None])
def test_a_job_with_an_id_that_none_has_is_refused(id_: Any, flavour: Flavour) -> None:
    with (
        ScriptedServer(answers(200, {**JOB, "id": id_})) as server,
        pytest.raises(TransportError, match=r"id of a job|a job: id must be") as caught,
    ):
        flavour.ask(server, lambda gpu: gpu.jobs.get("j1"))

    assert harmless(str(caught.value))


@pytest.mark.parametrize("wrong", [{"id": "../x"}, {"id": EVIL}, {"nbytes": 1e999}])
def test_a_tensor_that_none_can_be_is_refused(wrong: dict[str, Any], flavour: Flavour) -> None:
    payload = {"tensors": [{"id": "x", **STORED, **wrong}]}

    with ScriptedServer(answers(200, payload)) as server, pytest.raises(TransportError) as caught:
        flavour.ask(server, lambda gpu: gpu.tensors())

    assert harmless(str(caught.value))


def evil_declaration() -> dict[str, Any]:
    declared: dict[str, Any] = json.loads(json.dumps(DECLARED["permute"]))
    for part in (declared, *declared["inputs"], *declared["params"], *declared["outputs"]):
        for name in ("summary", "equivalent", "doc", "shape"):
            if name in part:
                part[name] = EVIL
    return declared


HEALTH = {
    "status": EVIL,
    "reasons": [EVIL],
    "uploads": EVIL,
    "lanes": [{**LANE, **dict.fromkeys(("name", "state", "device", "reason"), EVIL)}],
    "checks": [{"name": EVIL, "state": EVIL}],
}


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        (["kernels"], {"kernels": [evil_declaration()]}),
        (["kernels", "permute"], evil_declaration()),
        (["kernels", "permute", "--json"], evil_declaration()),
        (["health"], HEALTH),
        (["health", "--json"], HEALTH),
        (["jobs"], {"jobs": [INFO], "next": None}),
        (["jobs", "--json"], {"jobs": [INFO], "next": None}),
        (["cancel", "j1"], JOB),
        (["tensors", "list"], {"tensors": [{"id": "x", **STORED}]}),
        (["compare", "a", "b"], COMPARISON),
        (["implementations", "list"], {"implementations": [UPLOAD], "errors": [FAILED], "next": EVIL}),
        (["implementations", "list", "--json"], {"implementations": [UPLOAD], "errors": [FAILED], "next": EVIL}),
        (["implementations", "show", "ann/x"], {**UPLOAD, "source": EVIL, "versions": []}),
        (["implementations", "environment"], HOSTILE_ENVIRONMENT),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_command_prints_a_servers_text_without_its_control_characters(
    arguments: list[str],
    payload: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class HostileServer(OpsServer):
        def _answer(self, visit: Visit) -> None:
            answers(200, payload)(visit)

    with HostileServer() as server:
        result = Command(server, monkeypatch, capsys)(*arguments)

    assert harmless(result.out)
    assert harmless(result.err)
    assert "[2J" in result.out
    if "--json" in arguments:
        assert json.loads(result.out) == payload.get("jobs", payload)


@pytest.mark.parametrize(
    "payload",
    [
        {"jobs": [{**INFO, "cases_done": None, "tags": 7}], "next": None},
        {"jobs": [{}]},
        {"jobs": [INFO]},
    ],
)
def test_an_answer_that_cannot_be_shown_is_one_line(
    payload: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class HostileServer(OpsServer):
        def _answer(self, visit: Visit) -> None:
            answers(200, payload)(visit)

    with HostileServer() as server:
        result = Command(server, monkeypatch, capsys)("jobs")

    assert result.code == 1
    assert result.err.startswith("warpcall: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/b", "..", ".", ".hidden", "", "a\0b", "x" * 101]
)
def test_an_output_whose_name_leads_elsewhere_is_not_written(
    name: str, warpcall: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    np.save("x.npy", np.zeros((2, 2)))
    body = safetensors.numpy.save({"OUTPUT": np.zeros(1), "last": np.zeros(1)})
    wanted = json.dumps(name)[1:-1].encode()
    before = set(tmp_path.rglob("*"))

    def answered(visit: Visit, op: str) -> None:
        visit.body()
        length = int.from_bytes(body[:8], "little")
        header = body[8 : 8 + length].replace(b"OUTPUT", wanted)
        visit.answer(200, len(header).to_bytes(8, "little") + header + body[8 + length :])

    monkeypatch.setattr(warpcall.server, "_run", answered)

    result = warpcall("run", "permute", "x.npy", "--dims", "1,0", "-o", "{name}.npy")

    assert result.code == 1
    assert "cannot be part of a file's name" in result.err
    assert set(tmp_path.rglob("*")) == before


def test_the_bar_of_a_job_takes_what_a_server_may_tell() -> None:
    bar = Bar(parse(JobInfo, JOB, "a job"), True)
    values: list[object] = [EVIL, None, [], 1]
    kinds: list[Any] = ["state", "case", "progress", EVIL]
    for kind in kinds:
        for value in values:
            names = ("state", "case", "cases_done", "phase", "rounds", "implementation")
            bar.on_event(JobEvent(sequence=1, at=EVIL, kind=kind, data=dict.fromkeys(names, value)))
        bar.on_event(
            JobEvent(sequence=1, at=EVIL, kind=kind, data={"phase": "rounds", "rounds": EVIL})
        )
        bar.on_event(JobEvent(sequence=1, at=EVIL, kind=kind, data={}))
    bar.close()


def test_an_event_without_end_is_given_up() -> None:
    parser = Parser()

    for _ in range(MAX_EVENT_BYTES // 1024):
        list(parser.feed(b"x" * 1024))
    with pytest.raises(TransportError, match="endless line"):
        list(parser.feed(b"x"))


def test_an_event_may_come_in_drops() -> None:
    parser = Parser()
    sent = b'data: {"sequence": 1, "at": "", "kind": "note", "data": {}}\n\ndata: {"sequence": 2, "at": "", "kind": "note", "data": {}}\n'

    found = [event for i in range(len(sent)) for event in parser.feed(sent[i : i + 1])]

    assert [event.sequence for event in found] == [1, 2]


def test_an_event_nested_too_deeply_is_a_transport_error() -> None:
    with pytest.raises(TransportError, match="events of a job"):
        list(Parser().feed(b"data: " + b"[" * 100_000 + b"\n"))


def test_markup_and_control_characters_of_a_table_are_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console().print(table_of(("a", "b"), [("[red]x[/red] :smile:", EVIL)]))

    out = capsys.readouterr().out
    assert "[red]x[/red] :smile:" in out
    assert harmless(out)


@given(st.text(), st.integers(3, 50))
def test_any_text_is_made_printable_and_short(text: str, most: int) -> None:
    shown = clean(text, most)

    assert shown.isprintable()
    if text.isprintable() and len(text) <= most:
        assert shown == text


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner)))
def test_json_means_the_same_when_it_is_made_printable(value: Any) -> None:
    text = clean_json(json.dumps(value, ensure_ascii=False, indent=2))

    assert harmless(text)
    assert json.loads(text) == value
