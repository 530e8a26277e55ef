"""What the protocol says of the server and its models."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.oip.requests import INFER, body, refused


def test_the_server_says_what_it_is_and_that_it_is_well(http: httpx.Client) -> None:
    server = http.get("/v2").json()

    assert server["name"] == "warpcall"
    assert {"binary_tensor_data", "statistics", "system_shared_memory"} <= set(server["extensions"])
    assert http.get("/v2/health/live").json() == {"live": True}
    assert http.get("/v2/health/ready").json() == {"ready": True}


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_every_op_is_a_model_with_its_own_inputs_and_outputs(
    version: str, http: httpx.Client
) -> None:
    for op in http.get("/v1/kernels").json()["kernels"]:
        path = f"/v2/models/{op['name']}{version}"
        model = http.get(path).json()
        config = http.get(f"{path}/config").json()

        assert (model["name"], model["versions"]) == (op["name"], ["1"])
        for kind in ("inputs", "outputs"):
            assert [t["name"] for t in model[kind]] == [t["name"] for t in op[kind]]
            assert all(size == -1 for t in model[kind] for size in t["shape"])
            for t in model[kind]:
                assert t["datatype"] in t["parameters"]["datatypes"].split(",")
        assert [t["optional"] for t in config["input"]] == [t["optional"] for t in op["inputs"]]
        assert config["parameters"].keys() == {p["name"] for p in op["params"]}
        assert http.get(f"{path}/ready").status_code == 200


def test_what_a_model_takes_is_described_by_shape_and_datatype(http: httpx.Client) -> None:
    def described(model: str, kind: str) -> dict[str, tuple[str, list[int]]]:
        tensors = http.get(f"/v2/models/{model}").json()[kind]
        return {t["name"]: (t["datatype"], t["shape"]) for t in tensors}

    assert described("conv", "inputs")["x"] == ("FP32", [-1, -1, -1])
    assert described("conv", "outputs")["out"] == ("FP32", [-1, -1, -1])
    assert described("isin", "outputs")["out"] == ("BOOL", [-1])


def test_the_repository_lists_every_model(http: httpx.Client) -> None:
    names = [op["name"] for op in http.get("/v1/kernels").json()["kernels"]]

    for asked in (b"", b"{}", b'{"ready": true}'):
        listed = http.post("/v2/repository/index", content=asked).json()
        assert [model["name"] for model in listed] == names
        assert {(model["version"], model["state"]) for model in listed} == {("1", "READY")}
    assert "ready" in refused(http.post("/v2/repository/index", content=b'{"ready": 1}'), 422)
    refused(http.post("/v2/repository/index", content=b"[1"), 422)
    refused(http.post("/v2/repository/index", content=b"[" * 70_000), 413)


def stats(http: httpx.Client, path: str = "/v2/models/permute/stats") -> Any:
    (model,) = (m for m in http.get(path).json()["model_stats"] if m["name"] == "permute")
    return model


def test_statistics_count_what_was_inferred_and_how_long_it_took(http: httpx.Client) -> None:
    before = stats(http)

    for _ in range(3):
        assert http.post(INFER, json=body()).status_code == 200
    refused(http.post(INFER, json=body(parameters={})), 422)

    for path in ("/v2/models/stats", "/v2/models/permute/versions/1/stats"):
        after = stats(http, path)
        assert after["inference_count"] - before["inference_count"] == 3
        assert after["last_inference"] > before["last_inference"]
        grown = {
            name: (
                now["count"] - before["inference_stats"][name]["count"],
                now["ns"] - before["inference_stats"][name]["ns"],
            )
            for name, now in after["inference_stats"].items()
        }
        assert {name: count for name, (count, _) in grown.items()} == {
            **dict.fromkeys(("success", "queue", "compute_input", "compute_infer"), 3),
            "compute_output": 3,
            "fail": 1,
            "cache_hit": 0,
            "cache_miss": 0,
        }
        parts = ("queue", "compute_input", "compute_infer", "compute_output")
        assert 0 < sum(grown[part][1] for part in parts) < grown["success"][1]


@pytest.mark.parametrize("path", ["", "/config", "/ready", "/stats", "/versions/1", "/infer"])
def test_a_model_or_version_that_is_not_there_is_not_found(path: str, http: httpx.Client) -> None:
    ask = http.post if path == "/infer" else http.get
    other = "/v2/models/permute/versions/2" + path.removeprefix("/versions/1")

    assert "there are conv" in refused(ask(f"/v2/models/nothing{path}"), 404)
    assert "the version '1' only" in refused(ask(other), 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/permute/nothing", 404),
        ("POST", "/v2/models/infer", 405),  # a model may have this name: it has GET
        ("POST", "/v2/repository/models/permute/load", 404),
        ("GET", "/v2/cudasharedmemory/status", 404),
        ("GET", INFER, 405),
        ("PUT", "/v2/models/permute", 405),
        ("POST", "/v2/health/live", 405),
    ],
)
def test_what_the_server_lacks_is_refused_in_the_protocols_form(
    method: str, path: str, status: int, http: httpx.Client
) -> None:
    refused(http.request(method, path), status)
