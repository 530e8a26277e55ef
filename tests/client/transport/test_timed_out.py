"""What a timeout of the client says: at which stage of the call the time was over."""

from __future__ import annotations

import pickle
import threading

import pytest

from tests.client.flavours import Flavour
from tests.client.scripted import OUT, Script, ScriptedServer, Visit, permute, permute_large
from warpcall.errors import CallTimedOut, TimedOut, TransportError

TIMEOUT_S = 0.5


def test_the_stage_that_took_the_time_is_named(direct: Flavour) -> None:
    done = threading.Event()

    def never_reads(visit: Visit) -> None:
        done.wait(30)

    def never_answers(visit: Visit) -> None:
        visit.body()
        done.wait(30)

    def never_ends(visit: Visit) -> None:
        visit.body()
        visit.answer(200, OUT[:-4], {"Content-Length": str(len(OUT))})
        done.wait(30)

    stages = []
    scripts: list[Script] = [never_reads, never_answers, never_ends]
    for script in scripts:
        question = permute_large if script is never_reads else permute
        with ScriptedServer(script) as server, pytest.raises(CallTimedOut) as caught:
            direct.ask(server, question, timeout_s=TIMEOUT_S)
        assert isinstance(caught.value, TimedOut)
        assert isinstance(caught.value, TransportError)
        assert caught.value.stage in str(caught.value)
        stages.append(caught.value.stage)
    done.set()

    assert stages[0].startswith("sending the body, ")
    assert stages[0].endswith(" of 50,331,768 bytes")
    assert stages[1:] == ["waiting for the answer", "receiving the answer"]


def test_a_timeout_can_be_pickled() -> None:
    error = CallTimedOut("gpu-box:8000", "connecting")

    same = pickle.loads(pickle.dumps(error))

    assert (str(same), same.stage, same.detail) == (str(error), error.stage, error.detail)
