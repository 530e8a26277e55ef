"""Names of GPUs, and the architectures that `explain` asks the server for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client.command import Command
from tests.client.flavours import Flavour
from tests.client.scripted import ScriptedServer, Visit
from warpcall import InvalidInput
from warpcall._explain.gpus import GPUS, architecture_of
from warpcall.compile_reports import ARCHITECTURES


@pytest.mark.parametrize(
    ("given", "architecture"),
    [
        *[("sm_90", "sm_90"), ("SM_90", "sm_90"), ("sm80", "sm_80"), ("sm_121a", "sm_121a")],
        *[("h100", "sm_90"), ("H100", "sm_90"), ("NVIDIA H100 80GB HBM3", "sm_90")],
        *[("h200", "sm_90"), ("NVIDIA GH200 480GB", "sm_90"), ("b200", "sm_100")],
        *[("a100", "sm_80"), ("NVIDIA A100-SXM4-80GB", "sm_80"), ("NVIDIA RTX A6000", "sm_86")],
        *[("l4", "sm_89"), ("NVIDIA L40S", "sm_89"), ("NVIDIA RTX 6000 Ada Generation", "sm_89")],
        *[("rtx 4090", "sm_89"), ("RTX4090", "sm_89"), ("rtx-4090", "sm_89"), ("4090", "sm_89")],
        *[("NVIDIA GeForce RTX 3070 Ti", "sm_86"), ("RTX 5090", "sm_120"), ("b300", "sm_103")],
    ],
)
def test_a_name_stands_for_the_architecture_of_the_gpu(given: str, architecture: str) -> None:
    assert architecture_of(given) == architecture


def test_each_architecture_has_a_gpu() -> None:
    assert set(GPUS.values()) == set(ARCHITECTURES)
    assert {architecture_of(name) for name in GPUS} == set(ARCHITECTURES)


# A V100 and a Quadro RTX 6000 are older than all architectures that the server compiles for.
@pytest.mark.parametrize("given", ["v100", "rtx 6000", "h1", "", "a6000 ada"])
def test_the_error_of_an_unknown_name_lists_what_is_known(given: str) -> None:
    with pytest.raises(InvalidInput, match=r"^gpu must be one of sm_80, .*, or a GPU of a100") as e:
        architecture_of(given)

    assert e.value.detail.endswith(f"got {given!r}")
    assert e.value.field == "gpu"


def test_both_clients_send_the_architecture(direct: Flavour) -> None:
    bodies: list[Any] = []

    def take(visit: Visit) -> None:
        bodies.append(json.loads(visit.body()))
        visit.answer(422, b'{"detail": "seen"}', {"Content-Type": "application/problem+json"})

    with ScriptedServer(take) as server, pytest.raises(InvalidInput, match="seen"):
        direct.ask(server, lambda gpu: gpu.explain("permute", {"shape": [2, 2]}, gpu="H100"))

    assert bodies[0]["gpu"] == "sm_90"


def test_the_command_refuses_unknown_names_and_suggests_no_other_gpu(warpcall: Command) -> None:
    unknown = warpcall("explain", "permute", "--gpu", "v100")
    unsupported = warpcall("explain", "permute", "--gpu", "sm_70")

    assert (unknown.code, unsupported.code) == (2, 2)
    assert unknown.err.startswith("warpcall: --gpu must be one of sm_80, ")
    assert unknown.err.endswith("got 'v100'\n")
    assert "--gpu must be one of sm_80, " in unsupported.err
