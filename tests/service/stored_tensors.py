"""Ways to keep tensors on a server, as its tests use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from tests.service.requests import SAFETENSORS, metrics

ALL = "/v1/tensors"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def put(
    http: httpx.Client, id_: str, array: npt.NDArray[Any] = X, headers: Mapping[str, str] = {}
) -> httpx.Response:
    return http.put(
        f"{ALL}/{id_}", content=save({"x": array}), headers={"content-type": SAFETENSORS, **headers}
    )


def get(http: httpx.Client, id_: str) -> npt.NDArray[Any]:
    answer = http.get(f"{ALL}/{id_}")
    assert answer.status_code == 200, answer.text
    return load(answer.content)[id_]


def listed(http: httpx.Client) -> list[str]:
    return [tensor["id"] for tensor in http.get(ALL).json()["tensors"]]


def memory(http: httpx.Client) -> float:
    return metrics(http)['warpcall_tensor_bytes{lane="cpu"}']
