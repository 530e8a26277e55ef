"""Runs calls with tritonclient, in its own environment: `python triton_paths.py ADDRESS FOLDER
VARIANTS`. Variants that begin with "grpc" take the address of gRPC.

FOLDER/VARIANT.json lists the calls of a variant, tensors lie beside it as bytes, and so do the outputs afterwards.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import shared_memory, triton_to_np_dtype

REGION_BYTES = 1 << 20
LINE_BYTES = 64


def array_of(tensor: dict[str, Any], folder: Path) -> Any:
    dtype = ml_dtypes.bfloat16 if tensor["datatype"] == "BF16" else None
    data = np.fromfile(folder / tensor["file"], dtype or triton_to_np_dtype(tensor["datatype"]))
    return data.reshape(tensor["shape"])


def grpc_inputs_of(call: dict[str, Any], folder: Path) -> list[Any]:
    inputs = []
    for tensor in call["inputs"]:
        given = triton_grpc.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
        given.set_data_from_numpy(array_of(tensor, folder))
        inputs.append(given)
    return inputs


def inputs_of(call: dict[str, Any], folder: Path, *, binary: bool) -> list[Any]:
    inputs = []
    for tensor in call["inputs"]:
        given = triton.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
        as_bytes = binary or tensor["datatype"] == "BF16"  # as JSON the client refuses it
        given.set_data_from_numpy(array_of(tensor, folder), binary_data=as_bytes)
        inputs.append(given)
    return inputs


def outputs_of(call: dict[str, Any], *, binary: bool) -> list[Any] | None:
    if binary:
        return None  # all, as bytes
    return [
        triton.InferRequestedOutput(out["name"], binary_data=out["datatype"] == "BF16")
        for out in call["outputs"]
    ]


def with_lists(
    inputs: list[Any], params: dict[str, Any], api: Any = triton
) -> tuple[list[Any], dict[str, Any]]:
    """Lists of integers as tensors rather than as text."""
    scalars = {name: value for name, value in params.items() if not isinstance(value, str)}
    for name, text in params.items():
        if isinstance(text, str):
            numbers = np.array(text.split(",") if text else [], np.int64)
            given = api.InferInput(name, list(numbers.shape), "INT64")
            given.set_data_from_numpy(numbers)
            inputs.append(given)
    return inputs, scalars


def response_of(result: Any) -> dict[str, Any]:
    """Id, and datatypes of the outputs, of both kinds of results."""
    response = result.get_response()
    if isinstance(response, dict):
        outputs = {out["name"]: out["datatype"] for out in response["outputs"]}
        return {"id": response["id"], "outputs": outputs}
    return {"id": response.id, "outputs": {out.name: out.datatype for out in response.outputs}}


def save(result: Any, call: dict[str, Any], folder: Path, variant: str) -> None:
    wanted = {out["name"]: out["datatype"] for out in call["outputs"]}
    assert response_of(result) == {"id": call["id"], "outputs": wanted}
    for out in call["outputs"]:
        array = result.as_numpy(out["name"])
        assert list(array.shape) == out["shape"]
        array.tofile(folder / f"{call['id']}.{out['name']}.{variant}")


def sync(url: str, calls: list[dict[str, Any]], folder: Path, variant: str) -> None:
    binary = variant == "binary"
    packed = "gzip" if variant == "gzip" else "deflate" if variant == "deflate" else None
    with triton.InferenceServerClient(url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        for call in calls:
            assert client.is_model_ready(call["model"], "1")
            result = client.infer(
                call["model"],
                inputs_of(call, folder, binary=binary or packed is not None),
                outputs=outputs_of(call, binary=binary),
                request_id=call["id"],
                parameters=call["params"],
                request_compression_algorithm=packed,
                response_compression_algorithm=packed,
            )
            save(result, call, folder, variant)
        counted = client.get_inference_statistics()["model_stats"]
        assert sum(model["inference_count"] for model in counted) >= len(calls)


async def asynchronous(url: str, calls: list[dict[str, Any]], folder: Path, variant: str) -> None:
    binary = variant == "async-binary"
    async with triton_aio.InferenceServerClient(url) as client:
        assert await client.is_server_ready()

        async def run(call: dict[str, Any]) -> None:
            inputs, params = with_lists(inputs_of(call, folder, binary=binary), call["params"])
            result = await client.infer(
                call["model"],
                inputs,
                outputs=outputs_of(call, binary=binary),
                request_id=call["id"],
                parameters=params,
            )
            save(result, call, folder, variant)

        for begin in range(0, len(calls), 8):  # some at once
            await asyncio.gather(*map(run, calls[begin : begin + 8]))


def over_grpc(address: str, calls: list[dict[str, Any]], folder: Path, variant: str) -> None:
    with triton_grpc.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        for call in calls:
            assert client.is_model_ready(call["model"], "1")
            result = client.infer(
                call["model"],
                grpc_inputs_of(call, folder),
                request_id=call["id"],
                parameters=call["params"],
                client_timeout=60,
            )
            save(result, call, folder, variant)
        counted = client.get_inference_statistics().model_stats
        assert sum(model.inference_count for model in counted) >= len(calls)


def grpc_stream(address: str, calls: list[dict[str, Any]], folder: Path, variant: str) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton_grpc.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for call in calls:
            inputs, params = grpc_inputs_of(call, folder), call["params"]
            client.async_stream_infer(
                call["model"], inputs, request_id=call["id"], parameters=params
            )
        for call in calls:
            result, error = answers.get(timeout=60)
            assert error is None, error
            save(result, call, folder, variant)
        client.stop_stream()


async def grpc_async(address: str, calls: list[dict[str, Any]], folder: Path, variant: str) -> None:
    async with triton_grpc_aio.InferenceServerClient(address) as client:
        assert await client.is_server_ready()

        async def run(call: dict[str, Any]) -> None:
            inputs, params = with_lists(grpc_inputs_of(call, folder), call["params"], triton_grpc)
            result = await client.infer(
                call["model"], inputs, request_id=call["id"], parameters=params
            )
            save(result, call, folder, variant)

        for begin in range(0, len(calls), 8):  # some at once
            await asyncio.gather(*map(run, calls[begin : begin + 8]))


def key_of_region(client: Any) -> str:
    status = client.get_system_shared_memory_status("both")
    key: str = status[0]["key"] if isinstance(status, list) else status.regions["both"].key
    return key


def shared(
    url: str, calls: list[dict[str, Any]], folder: Path, variant: str, api: Any = triton
) -> None:
    """Inputs from the first half of a region, outputs into the second."""
    key = f"/warpcall-test-{folder.name}"
    region = shared_memory.create_shared_memory_region("both", key, REGION_BYTES)
    with api.InferenceServerClient(url) as client:
        try:
            client.register_system_shared_memory("both", key, REGION_BYTES)
            assert key_of_region(client) == key
            for call in calls:
                at, inputs, outputs = 0, [], []
                for tensor in call["inputs"]:
                    given = api.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
                    array = array_of(tensor, folder)
                    octets = np.frombuffer(array.tobytes(), np.uint8)
                    if array.nbytes:
                        shared_memory.set_shared_memory_region(region, [octets], offset=at)
                    given.set_shared_memory("both", array.nbytes, offset=at)
                    inputs.append(given)
                    at += -(-array.nbytes // LINE_BYTES) * LINE_BYTES
                assert at <= REGION_BYTES // 2
                at = REGION_BYTES // 2
                for out in call["outputs"]:
                    wanted = api.InferRequestedOutput(out["name"])
                    wanted.set_shared_memory("both", out["nbytes"], offset=at)
                    outputs.append((wanted, out, at))
                    at += -(-out["nbytes"] // LINE_BYTES) * LINE_BYTES
                result = client.infer(
                    call["model"],
                    inputs,
                    outputs=[wanted for wanted, _, _ in outputs],
                    request_id=call["id"],
                    parameters=call["params"],
                )
                assert response_of(result)["id"] == call["id"]
                for _, out, begin in outputs:
                    octets = shared_memory.get_contents_as_numpy(
                        region, np.uint8, [out["nbytes"]], offset=begin
                    )
                    octets.tofile(folder / f"{call['id']}.{out['name']}.{variant}")
            client.unregister_system_shared_memory("both")
            left = client.get_system_shared_memory_status()
            assert not (left if isinstance(left, list) else left.regions)
        finally:
            shared_memory.destroy_shared_memory_region(region)


def main() -> None:
    url, name, *variants = sys.argv[1:]
    folder = Path(name)
    for variant in variants:
        calls = json.loads((folder / f"{variant}.json").read_text())
        if variant == "shared":
            shared(url, calls, folder, variant)
        elif variant == "grpc-shared":
            shared(url, calls, folder, variant, triton_grpc)
        elif variant == "grpc-async":
            asyncio.run(grpc_async(url, calls, folder, variant))
        elif variant == "grpc-stream":
            grpc_stream(url, calls, folder, variant)
        elif variant == "grpc":
            over_grpc(url, calls, folder, variant)
        elif variant.startswith("async"):
            asyncio.run(asynchronous(url, calls, folder, variant))
        else:
            sync(url, calls, folder, variant)


if __name__ == "__main__":
    main()
