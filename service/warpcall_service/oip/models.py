"""The ops as models of the Open Inference Protocol: names of dtypes, metadata, configuration.

A model has one datatype for each tensor, and a fixed number of dims; an op often takes several. The
protocol's members then have FP32, or what comes first, and a -1 for each size that the op names; all
that is taken stands in `parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warpcall.dtypes import OIP_DATATYPES
from warpcall.errors import NotFound
from warpcall_service.text import brief

VERSION = "1"  # of every model: ops have none, their source has a hash
PLATFORM = "warpcall"

Model = dict[str, Any]


class Models:
    """The catalog's ops, by name, as models.

    Args:
        catalog: as the engine has it.
    """

    def __init__(self, catalog: Iterable[Mapping[str, Any]]) -> None:
        self.ops = {op["name"]: op for op in catalog}

    def op(self, name: str, version: str | None = None) -> Mapping[str, Any]:
        """The op behind a model.

        Raises:
            NotFound: no such model, or no such version of it.
        """
        op = self.ops.get(name)
        if op is None:
            known = ", ".join(self.ops)
            raise NotFound(f"there is no model {brief(name)}, there are {known}", field="model")
        if version not in (None, VERSION):
            raise NotFound(
                f"{name} has the version {VERSION!r} only, got {brief(version)}", field="version"
            )
        return op

    def metadata(self, op: Mapping[str, Any]) -> Model:
        """What GET /v2/models/{model} says."""
        return {
            "name": op["name"],
            "versions": [VERSION],
            "platform": PLATFORM,
            "inputs": [_tensor(given, _input_datatypes(given)) for given in op["inputs"]],
            "outputs": [_tensor(given, _output_datatypes(given, op)) for given in op["outputs"]],
            "parameters": {
                "summary": op["summary"],
                "equivalent": op["equivalent"],
                "source_sha256": op["source_sha256"],
            },
        }

    def config(self, op: Mapping[str, Any]) -> Model:
        """What GET /v2/models/{model}/config says: as Triton's model configuration."""
        metadata = self.metadata(op)
        return {
            "name": op["name"],
            "platform": PLATFORM,
            "backend": PLATFORM,
            "max_batch_size": 0,
            "input": [
                {**_configured(tensor), "optional": given["optional"]}
                for tensor, given in zip(metadata["inputs"], op["inputs"], strict=True)
            ],
            "output": [_configured(tensor) for tensor in metadata["outputs"]],
            "parameters": {
                param["name"]: {"string_value": _describe_param(param)} for param in op["params"]
            },
        }


def _input_datatypes(given: Mapping[str, Any]) -> list[str]:
    return [OIP_DATATYPES[code] for code in given["dtypes"] if code in OIP_DATATYPES]


def _output_datatypes(given: Mapping[str, Any], op: Mapping[str, Any]) -> list[str]:
    """What an output may have: its own, or any of the inputs'."""
    if given["dtype"] is not None:
        return [OIP_DATATYPES[given["dtype"]]]
    return _input_datatypes(op["inputs"][0])


def _tensor(given: Mapping[str, Any], datatypes: list[str]) -> Model:
    return {
        "name": given["name"],
        "datatype": "FP32" if "FP32" in datatypes else datatypes[0],
        "shape": _shape(given["shape"]),
        "parameters": {
            "datatypes": ",".join(datatypes),
            "shape": given["shape"],
            "description": given["doc"],
        },
    }


def _shape(text: str) -> list[int]:
    """A -1 for each size in a text such as "[..., K]"."""
    return [-1] * (text.count(",") + 1 if text.startswith("[") else 1)


def _configured(tensor: Model) -> Model:
    return {
        "name": tensor["name"],
        "data_type": f"TYPE_{tensor['datatype']}",
        "dims": tensor["shape"],
    }


def _describe_param(param: Mapping[str, Any]) -> str:
    """A parameter in words."""
    need = "required" if param["required"] else f"default {param['default']}"
    return f"{param['kind']}, {need}: {param['doc']}"
