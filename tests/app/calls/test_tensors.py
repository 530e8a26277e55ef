"""Stored tensors: put, used, got, deleted, expired, refused, lost with their lane."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.app.harness import App
from tests.e2e.test_survives import until
from tests.service.requests import PERMUTE, SAFETENSORS, metrics, npy, problem_of
from tests.service.stored_tensors import ALL, X, get, listed, memory, put
from warpcall import wire
from warpcall.dtypes import ITEMSIZE


def test_a_tensor_comes_back_as_it_was(tensor_client: httpx.Client) -> None:
    answer = put(tensor_client, "photo")

    stored = answer.json()["stored"]["x"]
    expires = datetime.fromisoformat(stored.pop("expires"))
    assert stored == {"id": "photo", "dtype": "F32", "shape": [2, 3], "nbytes": 24, "device": "cpu"}
    assert 500 < (expires - datetime.now(UTC)).total_seconds() < 601
    assert answer.headers["x-warpcall-device"].startswith("cpu")
    assert "h2d" in answer.headers["server-timing"]
    np.testing.assert_array_equal(get(tensor_client, "photo"), X)
    assert memory(tensor_client) == 24


@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("shape", [(), (3, 5), (2, 0, 3), (0, 1 << 40)], ids=str)
def test_every_dtype_stays_bit_by_bit(
    tensor_client: httpx.Client, dtype: str, shape: tuple[int, ...]
) -> None:
    info = wire.TensorInfo("x", dtype, shape)
    data = np.random.default_rng(1).integers(0, 2, info.nbytes, np.uint8).tobytes()
    body = wire.encode_header(wire.lay_out([info])) + data

    answer = tensor_client.put(f"{ALL}/x", content=body, headers={"content-type": SAFETENSORS})

    assert answer.status_code == 200, answer.text
    assert tensor_client.get(f"{ALL}/x").content == body


def test_it_can_come_in_every_format_and_go_in_every_one(tensor_client: httpx.Client) -> None:
    column = np.asfortranarray(X)
    as_json = {"x": {"dtype": "F32", "shape": [2, 3], "data": X.tolist()}}

    statuses = [
        tensor_client.put(f"{ALL}/form", files={"x": ("x.npy", npy(column))}).status_code,
        tensor_client.put(f"{ALL}/json", json={"inputs": as_json}).status_code,
    ]
    values = tensor_client.get(f"{ALL}/form", headers={"accept": "application/json"}).json()[
        "outputs"
    ]
    array = tensor_client.get(f"{ALL}/json", headers={"accept": "application/x-npy"}).content

    assert statuses == [200, 200]
    assert values["form"]["data"] == X.tolist()
    assert array == npy(X)


def test_several_at_once_get_ids_of_the_servers(tensor_client: httpx.Client) -> None:
    body = save({"layer.0.weight": X, "b": X.T.copy()})

    stored = tensor_client.put(ALL, content=body, headers={"content-type": SAFETENSORS}).json()[
        "stored"
    ]

    assert stored.keys() == {"layer.0.weight", "b"}
    assert sorted(listed(tensor_client)) == sorted(entry["id"] for entry in stored.values())
    np.testing.assert_array_equal(get(tensor_client, stored["b"]["id"]), X.T)


def test_the_response_of_a_put_holds_no_memory_of_the_arena(
    app: App, tensor_client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client may read it slowly."""
    held: list[int] = []
    asgi = app.asgi

    async def noting(scope: dict[str, Any], receive: Any, send: Any) -> None:
        async def note(message: dict[str, Any]) -> None:
            held.append(app.engine.all_lanes[0].arena.stats().used)
            await send(message)

        await asgi(scope, receive, note)

    monkeypatch.setattr(app, "asgi", noting)
    with app.client() as client:
        answer = put(client, "photo", np.zeros(1 << 20, np.float32))

    assert answer.status_code == 200
    assert held
    assert max(held) == 0


def test_a_call_takes_them_and_leaves_its_output_there(tensor_client: httpx.Client) -> None:
    put(tensor_client, "x")

    plain = tensor_client.post(f"{PERMUTE}?dims=1,0", headers={"X-Warpcall-Tensors": "x=x"})
    with_stored_output = tensor_client.post(
        f"{PERMUTE}?dims=1,0", headers={"X-Warpcall-Tensors": "x=x", "X-Warpcall-Store": "out=y"}
    )
    back = tensor_client.post(f"{PERMUTE}?dims=1,0", headers={"X-Warpcall-Tensors": "x=y"})

    np.testing.assert_array_equal(load(plain.content)["out"], X.T)
    assert load(with_stored_output.content) == {}
    np.testing.assert_array_equal(get(tensor_client, "y"), X.T)
    np.testing.assert_array_equal(load(back.content)["out"], X)
    assert memory(tensor_client) == 48


def test_the_plan_of_a_call_without_stored_tensors_is_not_used_for_one_with_them(
    tensor_client: httpx.Client,
) -> None:
    plain = {"content-type": SAFETENSORS}
    store = {**plain, "X-Warpcall-Store": "out=y"}

    answers = [
        tensor_client.post(f"{PERMUTE}?dims=1,0", content=save({"x": X}), headers=headers)
        for headers in (plain, store, plain)
    ]

    assert [list(load(answer.content)) for answer in answers] == [["out"], [], ["out"]]
    np.testing.assert_array_equal(get(tensor_client, "y"), X.T)


def test_some_inputs_come_with_the_call_and_some_outputs_go_with_it(
    tensor_client: httpx.Client,
) -> None:
    x, w = np.ones((1, 2, 5), np.float32), np.ones((2, 3), np.float32)
    put(tensor_client, "weight", w)

    answer = tensor_client.post(
        "/v1/kernels/conv-backward",
        content=save({"grad_output": x, "x": x}),
        headers={
            "content-type": SAFETENSORS,
            "X-Warpcall-Tensors": "weight=weight",
            "X-Warpcall-Store": "grad_weight",
            "accept": "application/json",
        },
    ).json()

    assert answer["outputs"].keys() == {"grad_x"}
    assert get(tensor_client, answer["stored"]["grad_weight"]["id"]).shape == (2, 3)


def test_an_output_that_is_a_view_of_a_kept_tensor_has_memory_of_its_own(
    tensor_client: httpx.Client,
) -> None:
    put(tensor_client, "x")
    tensor_client.post(
        f"{PERMUTE}?dims=0,1", headers={"X-Warpcall-Tensors": "x=x", "X-Warpcall-Store": "out=y"}
    )

    put(tensor_client, "x", np.zeros_like(X))
    tensor_client.delete(f"{ALL}/x")

    np.testing.assert_array_equal(get(tensor_client, "y"), X)


def test_what_is_put_under_an_id_in_use_takes_its_place(tensor_client: httpx.Client) -> None:
    put(tensor_client, "x", np.zeros(1000))

    put(tensor_client, "x")

    assert listed(tensor_client) == ["x"]
    np.testing.assert_array_equal(get(tensor_client, "x"), X)
    assert memory(tensor_client) == 24


def test_it_can_take_its_own_place(tensor_client: httpx.Client) -> None:
    put(tensor_client, "x")
    headers = {"X-Warpcall-Tensors": "x=x", "X-Warpcall-Store": "out=x"}

    for _ in range(3):
        assert tensor_client.post(f"{PERMUTE}?dims=1,0", headers=headers).status_code == 200

    np.testing.assert_array_equal(get(tensor_client, "x"), X.T)
    assert memory(tensor_client) == 24


def test_what_was_deleted_is_gone_and_said_so(tensor_client: httpx.Client) -> None:
    put(tensor_client, "x")

    deleted = tensor_client.delete(f"{ALL}/x")
    missing = [
        tensor_client.get(f"{ALL}/x"),
        tensor_client.post(f"{PERMUTE}?dims=0", headers={"X-Warpcall-Tensors": "x=x"}),
        tensor_client.delete(f"{ALL}/x"),
    ]

    assert deleted.json() == {"deleted": 1}
    assert [problem_of(answer, 404, "not-found", field) for answer, field in zip(missing, ("x", "x", "id"), strict=True)] == [
        "there is no tensor 'x': it was deleted"
    ] * 3  # fmt: skip
    assert "none was put here" in problem_of(
        tensor_client.get(f"{ALL}/nothing"), 404, "not-found", "nothing"
    )


WRONG_CALLS: tuple[tuple[dict[str, str], str | None, str], ...] = (
    ({"X-Warpcall-Tensors": "x=x,x=x"}, "X-Warpcall-Tensors", "each name once"),
    ({"X-Warpcall-Tensors": "x=../x"}, "X-Warpcall-Tensors", "1 to 64 of A-Z"),
    ({"X-Warpcall-Tensors": "y=x"}, "y", "permute has no input 'y'"),
    ({"X-Warpcall-Tensors": "x=x", "X-Warpcall-Store": "y=z"}, "X-Warpcall-Store", "must name outputs, out, got 'y'"),
    ({"X-Warpcall-Tensors": "x=x", "X-Warpcall-Store": "*=a,out=b"}, "X-Warpcall-Store", "got both"),
    ({"X-Warpcall-Tensors": "x=x", "X-Warpcall-Store": "*=" + "a" * 64}, "X-Warpcall-Store", "1 to 64"),
    ({"X-Warpcall-Tensors": "x=x", "X-Warpcall-Ttl": "0"}, "X-Warpcall-Ttl", "above 0"),
    ({"X-Warpcall-Tensors": "x=x", "X-Warpcall-Ttl": "1e3"}, "X-Warpcall-Ttl", "got '1e3'"),
    ({"X-Warpcall-Tensors": "x=x", "X-Warpcall-Device": "cuda:9"}, "X-Warpcall-Device", "one of cpu, got 'cuda:9'"),
    ({"X-Warpcall-Tensors": ",".join(f"x{i}=x" for i in range(257))}, "X-Warpcall-Tensors", "at most 256"),
    ({"X-Warpcall-Store": "out=y"}, "x", "permute needs the input x"),
)  # fmt: skip


@pytest.mark.parametrize(("headers", "field", "message"), WRONG_CALLS)
def test_a_wrong_header_is_refused_and_leaves_nothing(
    tensor_client: httpx.Client, headers: dict[str, str], field: str | None, message: str
) -> None:
    put(tensor_client, "x")

    answer = tensor_client.post(f"{PERMUTE}?dims=1,0", headers=headers)

    assert message in problem_of(answer, 422, "invalid-input", field)
    assert listed(tensor_client) == ["x"]
    assert memory(tensor_client) == 24


def test_an_input_cannot_come_twice(tensor_client: httpx.Client) -> None:
    put(tensor_client, "x")

    answer = tensor_client.post(
        f"{PERMUTE}?dims=1,0",
        content=save({"x": X}),
        headers={"content-type": SAFETENSORS, "X-Warpcall-Tensors": "x=x"},
    )

    assert "it came in both" in problem_of(answer, 422, "invalid-input", "x")


@pytest.mark.parametrize(
    ("path", "body", "headers", "field"),
    [
        (f"{ALL}/a b", save({"x": X}), {}, "id"),
        (f"{ALL}/.x", save({"x": X}), {}, "id"),
        (f"{ALL}/x/y", save({"x": X}), {}, "id"),
        (f"{ALL}/x", save({"x": X, "y": X}), {}, "body"),
        (ALL, save({}), {}, "body"),
        (f"{ALL}/x", save({"x": X}, metadata={"params": '{"a": 1}'}), {}, "a"),
        (f"{ALL}/x?ttl=5", save({"x": X}), {}, "ttl"),
        (f"{ALL}/x", save({"x": X}), {"X-Warpcall-Store": "x=y"}, "X-Warpcall-Store"),
        (f"{ALL}/x", save({"x": X})[:-1], {}, "body"),
    ],
)
def test_a_wrong_put_is_refused_and_leaves_nothing(
    tensor_client: httpx.Client, path: str, body: bytes, headers: dict[str, str], field: str
) -> None:
    answer = tensor_client.put(path, content=body, headers={"content-type": SAFETENSORS, **headers})

    problem_of(answer, 422, "invalid-input", field)
    assert listed(tensor_client) == []


def test_it_expires_unless_it_is_used_and_its_memory_comes_back(
    tensor_client: httpx.Client,
) -> None:
    put(tensor_client, "short", np.zeros(1000), {"X-Warpcall-Ttl": "0.2"})
    put(tensor_client, "used", np.zeros(10), {"X-Warpcall-Ttl": "5"})
    first = tensor_client.get(ALL).json()["tensors"][-1]["expires"]

    def gone() -> bool:
        get(tensor_client, "used")
        return "short" not in listed(tensor_client)

    until(gone)

    assert memory(tensor_client) == 80
    assert metrics(tensor_client)['warpcall_user_tensor_bytes{user="local"}'] == 80
    assert "unused for 0.2 s" in problem_of(
        tensor_client.get(f"{ALL}/short"), 404, "not-found", "short"
    )
    assert tensor_client.get(ALL).json()["tensors"][-1]["expires"] > first


def test_tensors_put_and_used_from_many_threads_stay_apart(tensor_client: httpx.Client) -> None:
    def play(i: int) -> bool:
        x = np.full((4, 5), i, np.int32)
        put(tensor_client, f"t{i}", x)
        headers = {"X-Warpcall-Tensors": f"x=t{i}", "X-Warpcall-Store": f"out=u{i}"}
        tensor_client.post(f"{PERMUTE}?dims=1,0", headers=headers)
        same = np.array_equal(get(tensor_client, f"u{i}"), x.T) and np.array_equal(
            get(tensor_client, f"t{i}"), x
        )
        return same and tensor_client.delete(f"{ALL}/t{i}").status_code == 200

    with ThreadPoolExecutor(8) as pool:
        right = list(pool.map(play, range(40)))

    assert all(right)
    assert sorted(listed(tensor_client)) == sorted(f"u{i}" for i in range(40))
