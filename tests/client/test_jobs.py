"""Jobs over connections that break, against a real server that follows a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.client.flavours import Flavour
from tests.client.job_answers import AT, DETAILS, SUBMITTED
from tests.client.scripted import Script, ScriptedServer, Visit
from warpcall import Client, InvalidInput, TimedOut, TransportError

PROGRESS = {"sequence": 1, "at": AT, "kind": "progress", "data": {"phase": "rounds", "rounds": 3}}
REQUEUED = {
    "sequence": 2,
    "at": AT,
    "kind": "state",
    "data": {"state": "interrupted", "detail": "lost"},
}
CASE = {"sequence": 3, "at": AT, "kind": "case", "data": {"case": "c", "cases_done": 1}}
END = {"sequence": 4, "at": AT, "kind": "state", "data": {"state": "succeeded", "exit_class": "ok"}}


def answers(payload: object, status: int = 200) -> Script:
    """Answers with JSON."""
    body = json.dumps(payload).encode()
    return lambda visit: visit.answer(status, body, {"Content-Type": "application/json"})


def streams(*events: dict[str, Any], seen: list[str], whole: bool = False) -> Script:
    """Sends events in drops, then breaks the connection, in the middle of one, or ends well."""

    def script(visit: Visit) -> None:
        seen.append(visit.headers["last-event-id"])
        lines = [f"id: {e['sequence']}\ndata: {json.dumps(e)}\n\n" for e in events]
        text = ": here\n\n" + "".join(lines) + ("" if whole else 'id: 9\ndata: {"seq')
        visit.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in text.encode():
            visit.sock.sendall(b"1\r\n%c\r\n" % byte)
        if whole:
            visit.sock.sendall(b"0\r\n\r\n")
        else:
            raise ConnectionAbortedError

    return script


def events(after: int = 0, **options: Any) -> Callable[[Any], Any]:
    """A function that reads all events of the job."""

    async def gather(gpu: Any) -> list[Any]:
        job = await gpu.jobs.get("j1")
        return [asdict(event) async for event in job.events(after, **options)]

    def ask(gpu: Any) -> Any:
        if isinstance(gpu, Client):
            return [asdict(event) for event in gpu.jobs.get("j1").events(after, **options)]
        return gather(gpu)

    return ask


def test_each_event_comes_once_however_often_the_connection_breaks(flavour: Flavour) -> None:
    seen: list[str] = []
    scripts = (
        streams(PROGRESS, seen=seen),
        streams(REQUEUED, seen=seen, whole=True),
        lambda visit: visit.answer(503, b"{}"),
        streams(CASE, END, seen=seen),
    )

    with ScriptedServer(answers(DETAILS), *scripts) as server:
        (found,) = flavour.ask(server, events())

    assert found == [PROGRESS, REQUEUED, CASE, END]
    assert seen == ["0", "1", "2"]


def test_a_job_that_has_ended_and_been_seen_has_no_more_events(flavour: Flavour) -> None:
    with ScriptedServer(answers(DETAILS), lambda visit: visit.answer(204)) as server:
        (found,) = flavour.ask(server, events(after=4))

    assert found == []


def test_events_may_be_left_before_their_end(flavour: Flavour) -> None:
    async def first(gpu: Any) -> Any:
        return await anext((await gpu.jobs.get("j1")).events())

    def ask(gpu: Any) -> Any:
        return next(gpu.jobs.get("j1").events()) if isinstance(gpu, Client) else first(gpu)

    with ScriptedServer(answers(DETAILS), streams(PROGRESS, CASE, seen=[])) as server:
        (found,) = flavour.ask(server, ask)

    assert asdict(found) == PROGRESS


def test_who_waits_no_longer_than_so_long_hears_that_the_job_goes_on(flavour: Flavour) -> None:
    def silent(visit: Visit) -> None:
        visit.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        visit.sock.recv(1)  # until the client leaves

    with (
        ScriptedServer(answers(DETAILS), silent) as server,
        pytest.raises(TimedOut, match="the job j1 had not ended in time; it goes on"),
    ):
        flavour.ask(server, events(timeout_s=0.3))


def test_what_is_no_event_is_an_error_of_the_server(flavour: Flavour) -> None:
    with (
        ScriptedServer(answers(DETAILS), streams({"sequence": "x"}, seen=[])) as server,
        pytest.raises(TransportError, match="must send events of a job"),
    ):
        flavour.ask(server, events())


def test_a_server_that_stays_away_is_an_error(direct: Flavour) -> None:
    def leaves(visit: Visit) -> None:
        raise ConnectionAbortedError

    with (
        ScriptedServer(answers(DETAILS), leaves) as server,
        pytest.raises(TransportError, match="broke"),
    ):
        direct.ask(server, events(), timeout_s=0.4)


@pytest.mark.parametrize("id_", ["", "a/b", "..", "a" * 65, "j1?x", "é"])
def test_an_id_that_cannot_be_one_is_refused_here(id_: str, direct: Flavour) -> None:
    with (
        ScriptedServer(answers(DETAILS)) as server,
        pytest.raises(InvalidInput, match="id of a job"),
    ):
        direct.ask(server, lambda gpu: gpu.jobs.get(id_))

    assert server.targets == []


def test_a_submission_whose_answer_was_lost_is_sent_again_with_the_same_key(
    direct: Flavour,
) -> None:
    keys: list[str] = []

    def lost(visit: Visit) -> None:
        visit.body()
        keys.append(visit.headers["idempotency-key"])
        raise ConnectionAbortedError

    def found(visit: Visit) -> None:
        assert json.loads(visit.body()) == {"op": "permute", "cases": [{"shape": [2]}]}
        keys.append(visit.headers["idempotency-key"])
        answers(SUBMITTED)(visit)

    with ScriptedServer(lost, found) as server:
        (job,) = direct.ask(server, lambda gpu: gpu.jobs.submit("permute", cases=[{"shape": (2,)}]))

    assert job.id == "j1"
    assert keys[0] == keys[1]
