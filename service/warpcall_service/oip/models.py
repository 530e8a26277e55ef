"""The ops as models of the Open Inference Protocol: their metadata and configuration.

The protocol describes a tensor by one datatype and a fixed number of dims; an op often takes
several of both. The datatype is then FP32 if the op takes it, else the first that it takes. The
shape has a -1 for each size that the op names. `parameters` lists every datatype, and the shape as
the op declares it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warpcall.dtypes import OIP_DATATYPES
from warpcall.errors import NotFound
from warpcall_service.text import brief

VERSION = "1"  # of every model; ops have no versions, but the metadata has a hash of their source
PLATFORM = "warpcall"

Model = dict[str, Any]


class Models:
    """The ops of the engine's catalog, as models.

    Attributes:
        ops: the catalog's entries, by name.
    """

    def __init__(self, catalog: Iterable[Mapping[str, Any]]) -> None:
        self.ops = {op["name"]: op for op in catalog}

    def op(self, name: str, version: str | None = None) -> Mapping[str, Any]:
        """The op of a model.

        Raises:
            NotFound: there is no such model, or no such version of it.
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
        """The response to GET /v2/models/{model}."""
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
        """The response to GET /v2/models/{model}/config, in the form of Triton's configurations."""
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
    """The datatypes of an output: its own, or those of the first input."""
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
    """A -1 for each size in a declared shape such as "[..., K]"."""
    return [-1] * (text.count(",") + 1 if text.startswith("[") else 1)


def _configured(tensor: Model) -> Model:
    return {
        "name": tensor["name"],
        "data_type": f"TYPE_{tensor['datatype']}",
        "dims": tensor["shape"],
    }


def _describe_param(param: Mapping[str, Any]) -> str:
    """One line about a parameter."""
    need = "required" if param["required"] else f"default {param['default']}"
    return f"{param['kind']}, {need}: {param['doc']}"
