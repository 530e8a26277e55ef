"""Clients of the protocol that others wrote, as they are: every case of every op, in every variant."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from demo.server import Server
from tests.kernels import suite
from tests.oip import environments
from warpcall.dtypes import OIP_DATATYPES
from warpcall_kernels import Op, ops
from warpcall_kernels.op.cases import Case
from warpcall_service.devices.tensors import CODES

pytestmark = pytest.mark.slow

# What one process of a client does, by the protocol that it speaks.
VARIANTS = {
    "triton": ("binary", "json", "gzip", "deflate", "shared", "async-binary", "async-json"),
    "grpc": ("grpc", "grpc-async", "grpc-stream", "grpc-shared"),
    "kserve": ("kserve-binary", "kserve-json"),
}
MAX_JSON_VALUES = (512 << 10) // 25  # a float64 takes up to 25 characters
Calls = list[tuple[Op, Case, dict[str, Any]]]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Calls]:
    """Each small case of each op, but for dtypes that the protocol lacks."""
    folder = tmp_path_factory.mktemp("calls")
    found: Calls = []
    for op in ops().values():
        for case in op.cases:
            inputs = {} if case.size != "small" else case.tensors()
            if inputs and all(CODES.get(t.dtype) in OIP_DATATYPES for t in inputs.values()):
                found.append((op, case, _call(op, case, inputs, folder, f"{len(found)}")))
    return folder, found


def _call(
    op: Op, case: Case, inputs: Mapping[str, Tensor], folder: Path, name: str
) -> dict[str, Any]:
    params = op.check_params(case.params)
    sent = {}
    for key, value in params.items():
        if value is not None:
            sent[key] = ",".join(map(str, value)) if isinstance(value, tuple) else value
    given = []
    for key, tensor in inputs.items():
        file = f"{name}.{key}"
        (folder / file).write_bytes(_bytes(tensor))
        given.append({"name": key, "file": file, **_described(tensor)})
    outputs = [
        {"name": key, **_described(torch.empty(meta.shape, dtype=meta.dtype))}
        for key, meta in op.check(suite.metas(inputs), params).items()
    ]
    return {
        "id": name,
        "model": op.name,
        "params": sent,
        "inputs": given,
        "outputs": outputs,
        "finite": all(bool(tensor.isfinite().all()) for tensor in inputs.values()),
    }


def _described(tensor: Tensor) -> dict[str, Any]:
    datatype = OIP_DATATYPES[CODES[tensor.dtype]]
    return {"datatype": datatype, "shape": list(tensor.shape), "nbytes": tensor.nbytes}


def _values(tensors: list[dict[str, Any]]) -> int:
    return sum(math.prod(tensor["shape"]) for tensor in tensors)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _read(output: Mapping[str, Any], file: Path) -> Tensor:
    dtype = next(d for d, code in CODES.items() if OIP_DATATYPES.get(code) == output["datatype"])
    data = bytearray(file.read_bytes())
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(output["shape"])


@pytest.fixture(scope="module")
def right() -> set[tuple[str, str, bytes]]:
    """Outputs that were right: id of the call, name, and bytes. Most variants return the same ones."""
    return set()


@pytest.mark.timeout(560)  # it installs the client
@pytest.mark.parametrize("kind", VARIANTS)
def test_an_unmodified_client_gets_every_case_right_in_every_variant(
    kind: str,
    calls: tuple[Path, Calls],
    right: set[tuple[str, str, bytes]],
    server: Server,
) -> None:
    folder, every = calls
    made = {variant: taken(kind, variant, every) for variant in VARIANTS[kind]}
    for variant, own in made.items():
        assert {op.name for op, _, _ in own} == set(ops())
        (folder / f"{variant}.json").write_text(json.dumps([call for _, _, call in own]))
    host = server.url.partition("://")[2]
    address = {"kserve": server.url, "grpc": server.grpc_address}.get(kind, host)
    client = "kserve" if kind == "kserve" else "triton"

    environments.run(client, f"{client}_paths.py", address, str(folder), *made)

    for variant, own in made.items():
        check(variant, own, folder, right)


def taken(kind: str, variant: str, every: Calls) -> Calls:
    """The calls that a client can make in a variant."""
    if kind == "kserve":  # it has no BF16, and writes null in JSON for what is not finite
        every = [found for found in every if "BF16" not in json.dumps(found[2])]
    if "json" in variant:  # as text the inputs must have at most `max_json_bytes`
        every = [found for found in every if _values(found[2]["inputs"]) <= MAX_JSON_VALUES]
    if variant == "kserve-json":
        every = [found for found in every if found[2]["finite"]]
    return every


def check(variant: str, made: Calls, folder: Path, right: set[tuple[str, str, bytes]]) -> None:
    """Compare the outputs that a client has written, each different one once."""
    for op, case, call in made:
        outputs, seen = {}, set()
        for output in call["outputs"]:
            file = folder / f"{call['id']}.{output['name']}.{variant}"
            outputs[output["name"]] = _read(output, file)
            seen.add((call["id"], output["name"], file.read_bytes()))
        if not seen <= right:
            suite.assert_right(op, case.tensors(), case.params, outputs)
            right |= seen
