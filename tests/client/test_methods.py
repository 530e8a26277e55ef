"""The methods of both clients, against a server that has the ops."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.client.flavours import Flavour
from tests.client.scripted import ScriptedServer, well
from tests.client.scripted_ops import DECLARED, READY, OpsServer
from warpcall import (
    AsyncClient,
    AsyncJob,
    AsyncJobArtefact,
    Client,
    InvalidInput,
    Job,
    JobArtefact,
    NotFound,
    TransportError,
)
from warpcall._jobs.client import AsyncJobs, Jobs
from warpcall._jobs.implementations import AsyncImplementations, Implementations
from warpcall._jobs.monitors import AsyncMonitors, Monitors
from warpcall._jobs.problems import AsyncProblems, Problems
from warpcall._jobs.regressions import AsyncRegressions, Regressions

VALUES: dict[str, Any] = {"bool": True, "int": 2, "float": 0.5, "ints": (1, 0)}
ARRAYS: dict[str, Callable[[int], Any]] = {
    "numpy": lambda i: np.full((2, 3), i, np.float32),
    "torch": lambda i: torch.full((2, 3), i, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("library", ARRAYS)
def test_a_method_sends_its_arguments_by_name_and_gives_its_outputs(
    library: str, name: str, direct: Flavour
) -> None:
    arrays = {i["name"]: ARRAYS[library](n) for n, i in enumerate(DECLARED[name]["inputs"])}
    params = {p["name"]: VALUES[p["kind"]] for p in DECLARED[name]["params"]}

    with OpsServer() as server:
        method = name.replace("-", "_")
        (got,) = direct.ask(server, lambda gpu: getattr(gpu, method)(*arrays.values(), **params))

    assert server.seen.params == {k: list(v) if k == "dims" else v for k, v in params.items()}
    assert server.seen.inputs.keys() == arrays.keys()
    for key, array in arrays.items():
        assert server.seen.inputs[key].tolist() == array.tolist()
    outputs = got if isinstance(got, tuple) else (got,)
    assert len(outputs) == len(DECLARED[name]["outputs"])
    assert {type(out) for out in outputs} == {type(next(iter(arrays.values())))}
    assert {out.dtype for out in outputs} == {next(iter(arrays.values())).dtype}


def test_what_is_left_out_is_not_sent(direct: Flavour) -> None:
    x = np.ones((2, 3), np.float32)

    with OpsServer() as server:
        (grads,) = direct.ask(server, lambda gpu: gpu.conv_backward(x, x, x))

        assert server.seen.params == {"softmax_weight": False, "bias": False}
    assert grads[2] is None


def test_run_gives_one_output_alone_and_several_by_name(direct: Flavour) -> None:
    x = np.ones((2, 3), np.float32)

    with OpsServer() as server:
        out, grads = direct.ask(
            server,
            lambda gpu: gpu.run("permute", x=x, dims=[1, 0]),
            lambda gpu: gpu.run("conv-backward", grad_output=x, x=x, weight=x, bias=True),
        )

    assert out.shape == (3, 2)
    assert grads.keys() == {"grad_x", "grad_weight", "grad_bias"}


def test_ops_and_health_are_as_the_server_says(direct: Flavour) -> None:
    with OpsServer() as server:
        listed, one, health = direct.ask(
            server, lambda gpu: gpu.kernels(), lambda gpu: gpu.kernel("isin"), lambda g: g.health()
        )

    assert [op["name"] for op in listed] == list(DECLARED)
    assert one["equivalent"] == DECLARED["isin"]["equivalent"]
    assert health.to_dict() == READY


def test_ops_are_listed_with_what_they_take_and_as_a_table(direct: Flavour) -> None:
    with OpsServer() as server:
        listed, one = direct.ask(server, lambda gpu: gpu.ops(), lambda gpu: gpu.op("isin"))

    assert [op.name for op in listed] == list(DECLARED)
    assert one == next(op for op in listed if op.name == "isin")
    assert one.signature == "isin(elements, test_elements, [assume_unique], [invert])"
    assert repr(one) == "OpInfo('isin', 'isin(elements, test_elements, [assume_unique], [invert])')"
    assert one.to_dict()["inputs"][0]["name"] == "elements"
    assert "equivalent to" in one._repr_html_()
    assert (
        "<td>isin(elements, test_elements, [assume_unique], [invert])</td>" in listed._repr_html_()
    )


def test_an_op_of_a_newer_server_is_listed_and_called_by_name(direct: Flavour) -> None:
    x = np.ones((2, 3), np.float32)

    with OpsServer() as server:
        server.declared["flip"] = {**server.declared["isin"], "name": "flip", "since": "9.0"}
        listed, out = direct.ask(
            server, lambda gpu: gpu.ops(), lambda gpu: gpu.run("flip", elements=x, invert=True)
        )
        seen = server.seen

    assert not hasattr(Client, "flip")
    assert "flip" in [op.name for op in listed]
    assert (seen.params, out.tolist()) == ({"invert": True}, x.tolist())


def test_an_op_that_the_server_lacks_is_not_found(direct: Flavour) -> None:
    with OpsServer() as server, pytest.raises(NotFound, match="there is no op 'sort'"):
        direct.ask(server, lambda gpu: gpu.run("sort", x=np.ones(3)))


def test_the_words_of_a_refusal_cross_unchanged(direct: Flavour) -> None:
    with OpsServer() as server, pytest.raises(InvalidInput) as caught:
        direct.ask(server, lambda gpu: gpu.permute(np.ones((2, 3)), dims=(0,)))

    assert str(caught.value) == "dims must name each of the 2 dims of x"
    assert caught.value.field == "dims"


def test_an_answer_without_the_output_of_the_op_says_so() -> None:
    x = np.ones((1, 2, 3), np.float32)

    with (
        ScriptedServer(well) as server,
        Client(server.url) as gpu,
        pytest.raises(TransportError, match="must have the output grad_x, got out"),
    ):
        gpu.conv_backward(x, x, x[0])


PAIRS = [
    (Client, AsyncClient),
    (Jobs, AsyncJobs),
    (Job, AsyncJob),
    (JobArtefact, AsyncJobArtefact),
    (Implementations, AsyncImplementations),
    (Problems, AsyncProblems),
    (Monitors, AsyncMonitors),
    (Regressions, AsyncRegressions),
]


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_both_classes_of_a_pair_have_the_same_methods_and_arguments(
    blocking: type, awaited: type
) -> None:
    methods = public_methods(blocking)

    assert methods.keys() == public_methods(awaited).keys()
    for name, method in methods.items():
        twin = inspect.signature(getattr(awaited, name))
        assert inspect.signature(method).parameters == twin.parameters
        assert (method.__name__, inspect.iscoroutinefunction(method)) == (name, False)
        assert inspect.getdoc(method)


def test_a_derived_method_looks_as_if_it_were_written_out() -> None:
    assert str(inspect.signature(Jobs.history)) == (
        "(self, case: 'str', *, implementation: 'str | None' = None, limit: 'int | None' = None)"
        " -> 'History'"
    )
    assert (inspect.getdoc(Jobs.history) or "").startswith("What a case took, job by job, the")
    help_text = pydoc.plain(pydoc.render_doc(Jobs))
    assert "history(self, case: 'str', *, implementation: 'str | None' = None," in help_text
    assert "case: key of the case, as results have it under `case`." in help_text


def public_methods(kind: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}
