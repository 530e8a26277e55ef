"""Inference requests as tests make them, right ones and wrong ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/permute/infer"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def tensor(name: str, array: npt.NDArray[Any], datatype: str = "FP32", **more: Any) -> Any:
    """An input as JSON: its data, unless `more` says otherwise."""
    entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype}
    return entry | (more or {"data": array.tolist()})


def binary(name: str, array: npt.NDArray[Any], datatype: str = "FP32") -> Any:
    """An input that comes as bytes."""
    return tensor(name, array, datatype, parameters={"binary_data_size": array.nbytes})


def body(**changes: Any) -> dict[str, Any]:
    """A transposition as JSON, with some members of it changed."""
    return {"inputs": [tensor("x", X)], "parameters": {"dims": "1,0"}, **changes}


def packed(request: Mapping[str, Any], *data: bytes) -> tuple[bytes, dict[str, str]]:
    """A body of JSON and bytes, and the header that says where the bytes begin."""
    text = json.dumps(request).encode()
    return b"".join((text, *data)), {LENGTH: str(len(text))}


def refused(answer: httpx.Response, status: int) -> str:
    """Check an answer to be an error in the protocol's form; returns what it says."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    assert "Traceback" not in answer.text
    error: str = answer.json()["error"]
    return error


def outputs_of(answer: httpx.Response) -> dict[str, Any]:
    """The outputs of an answer by name: nested lists or bytes, as they came."""
    assert answer.status_code == 200, answer.text
    nbytes = int(answer.headers.get(LENGTH, len(answer.content)))
    payload = json.loads(answer.content[:nbytes])
    found, at = {}, nbytes
    for output in payload["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[output["name"]] = output.get("data")
        else:
            found[output["name"]] = answer.content[at : at + size]
            at += size
    assert at == len(answer.content)
    return found
