"""numpy arrays and torch tensors to bytes of the wire and back, copying only what must be copied.

torch is never imported here: a tensor can only come from a program that has imported it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeGuard, TypeVar, cast

import numpy as np
import numpy.typing as npt

from warpcall.dtypes import CODES, NUMPY_DTYPES
from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
ArrayT = TypeVar("ArrayT", npt.NDArray[Any], "torch.Tensor")

# The wire is little-endian, so is every machine with a GPU; a big-endian caller's arrays are swapped.
_WIRE_ORDER: Literal["<"] = "<"


@dataclass(frozen=True, slots=True)
class Flat:
    """A tensor as the wire has it: what it is, and its bytes in C order (a view where possible)."""

    info: TensorInfo
    data: Bytes


@dataclass(frozen=True, slots=True)
class Kind(Generic[ArrayT]):
    """Which library the caller's arrays are of, and for torch the device they are on."""

    device: torch.device | None = None

    def build(self, data: Bytes, info: TensorInfo) -> ArrayT:
        """The tensor `info` out of `data` (its bytes): a view for numpy and for torch on the CPU."""
        if self.device is None:
            return cast(ArrayT, data.view(NUMPY_DTYPES[info.dtype]).reshape(info.shape))
        return cast(ArrayT, _to_torch(data, info, self.device))


def kind_of(inputs: Mapping[str, ArrayT]) -> Kind[ArrayT]:
    """What all of `inputs` are, so that the outputs can be the same; numpy if there are none.

    Raises:
        InvalidInput: numpy arrays and torch tensors, or torch devices, mixed in one call.
    """
    homes = {name: _home(value) for name, value in inputs.items()}
    first = next(iter(homes), None)
    for name, home in homes.items():
        if first is not None and home != homes[first]:
            raise InvalidInput(
                f"{name} must be {_home_name(homes[first])} as {first} is, got {_home_name(home)}",
                field=name,
            )
    return Kind(None if first is None else homes[first])


def is_array(value: object) -> bool:
    """Whether `value` is something that travels as a tensor."""
    return isinstance(value, np.ndarray) or _is_tensor(value)


def flatten(name: str, value: object) -> Flat:
    """The bytes of an array, in C order and little-endian.

    Raises:
        InvalidInput: not an array, or of a dtype that the wire does not have.
    """
    if isinstance(value, np.ndarray):
        return _from_numpy(name, value)
    if _is_tensor(value):
        return _from_torch(name, value)
    hint = ""
    if isinstance(value, bool | int | float | complex | list | tuple | np.generic):
        hint = f": pass np.asarray({name}, dtype=...)"
    raise InvalidInput(
        f"{name} must be a numpy array or a torch tensor, got {type(value).__name__}{hint}",
        field=name,
    )


def _from_numpy(name: str, array: Array) -> Flat:
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidInput(
            f"{name} must be a plain array, got a masked one: fill it, and send the mask by itself",
            field=name,
        )
    native = array.dtype.newbyteorder("=")
    code = CODES.get(native)
    if code is None:
        raise _unsupported(name, str(array.dtype), [str(d) for d in NUMPY_DTYPES.values()])
    # asarray, because ascontiguousarray would turn 0-dim into 1-dim.
    wire_dtype: np.dtype[Any] = native.newbyteorder(_WIRE_ORDER)
    plain = np.asarray(array, dtype=wire_dtype, order="C")
    return Flat(TensorInfo(name, code, array.shape), plain.reshape(-1).view(np.uint8))


def _from_torch(name: str, tensor: torch.Tensor) -> Flat:
    lib = sys.modules["torch"]
    dtypes = _torch_dtypes()
    code = next((code for code, dtype in dtypes.items() if dtype == tensor.dtype), None)
    if code is None:
        allowed = [str(d).removeprefix("torch.") for d in dtypes.values()]
        raise _unsupported(name, str(tensor.dtype).removeprefix("torch."), allowed)
    if tensor.layout != lib.strided or tensor.is_meta:
        what = "a meta" if tensor.is_meta else f"a {str(tensor.layout).removeprefix('torch.')}"
        raise InvalidInput(f"{name} must be a dense tensor, got {what} tensor", field=name)
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # Not reshape(-1), which leaves an odd stride to a tensor of one element or none.
    flat = plain.as_strided((plain.numel(),), (1,))
    return Flat(TensorInfo(name, code, tuple(tensor.shape)), flat.view(lib.uint8).numpy())


def _to_torch(data: Bytes, info: TensorInfo, device: torch.device) -> Any:
    lib = sys.modules["torch"]
    dtype = _torch_dtypes().get(info.dtype)
    if dtype is None:
        raise InvalidInput(
            f"{info.name} came as {info.dtype}, which this version of torch does not have",
            field=info.name,
        )
    if data.size == 0:
        return lib.empty(info.shape, dtype=dtype, device=device)
    return lib.from_numpy(data).view(dtype).reshape(info.shape).to(device)


@functools.cache
def _torch_dtypes() -> dict[str, torch.dtype]:
    """Wire codes to torch dtypes, less those that an older torch does not have."""
    lib = sys.modules["torch"]
    names = {code: str(dtype) for code, dtype in NUMPY_DTYPES.items()}
    return {code: getattr(lib, name) for code, name in names.items() if hasattr(lib, name)}


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    lib = sys.modules.get("torch")
    return lib is not None and isinstance(value, lib.Tensor)


def _home(value: object) -> torch.device | None:
    """The device of a torch tensor; None for everything else, which `flatten` judges."""
    return value.device if _is_tensor(value) else None


def _home_name(home: torch.device | None) -> str:
    return "a numpy array" if home is None else f"a torch tensor on {home}"


def _unsupported(name: str, got: str, allowed: list[str]) -> InvalidInput:
    return InvalidInput(
        f"{name} must have a dtype of {', '.join(allowed)}, got {got}",
        field=name,
    )
