"""Runs calls with kserve's inference client, in its own environment; as triton_paths.py does."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from kserve import InferInput, InferRequest
from kserve.inference_client import InferenceRESTClient, RESTConfig
from kserve.protocol.infer_type import RequestedOutput
from kserve.utils.numpy_codec import to_np_dtype


async def main() -> None:
    url, name, *variants = sys.argv[1:]
    folder = Path(name)
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=60)) as client:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        for variant in variants:
            for call in json.loads((folder / f"{variant}.json").read_text()):
                assert await client.is_model_ready(url, call["model"])
                binary = variant == "kserve-binary"
                await run(client, url, call, folder, variant, binary=binary)


async def run(
    client: Any, url: str, call: dict[str, Any], folder: Path, variant: str, *, binary: bool
) -> None:
    inputs = []
    for tensor in call["inputs"]:
        given = InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
        data = np.fromfile(folder / tensor["file"], to_np_dtype(tensor["datatype"]))
        as_bytes = binary or tensor["datatype"] == "FP16"  # as JSON the client refuses it
        given.set_data_from_numpy(data.reshape(tensor["shape"]), binary_data=as_bytes)
        inputs.append(given)
    outputs = [RequestedOutput(out["name"], {"binary_data": binary}) for out in call["outputs"]]
    request = InferRequest(
        call["model"],
        inputs,
        request_id=call["id"],
        parameters=call["params"],
        request_outputs=outputs,
    )
    answer = await client.infer(url, request, model_name=call["model"])
    assert answer.id == call["id"]
    assert answer.model_name == call["model"]
    for out in call["outputs"]:
        output = next(given for given in answer.outputs if given.name == out["name"])
        assert output.datatype == out["datatype"]
        assert list(output.shape) == out["shape"]
        output.as_numpy().tofile(folder / f"{call['id']}.{out['name']}.{variant}")


if __name__ == "__main__":
    asyncio.run(main())
