"""Converts numpy arrays and torch tensors to bytes of the wire and back, without needless copies.

This module never imports torch. A caller who passes a torch tensor has imported it already.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeGuard, TypeVar, cast

import numpy as np
import numpy.typing as npt

from warpcall.dtypes import numpy_dtypes
from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo

NUMPY_DTYPES = numpy_dtypes()
CODES = {dtype: code for code, dtype in NUMPY_DTYPES.items()}

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
ArrayT = TypeVar("ArrayT", npt.NDArray[Any], "torch.Tensor")

# The wire is little-endian. Arrays of another byte order are swapped before they are sent.
_WIRE_ORDER: Literal["<"] = "<"
LATE_COPY_BYTES = 16 << 20  # a copy of fewer bytes costs less than to ask the server first
_IS_LITTLE = sys.byteorder == "little"


@dataclass(frozen=True, slots=True)
class Flat:
    """A tensor in the form of the wire.

    Attributes:
        info: its description.
        given: its bytes in C order, or a function that makes them: a large copy is made only when
            the server has accepted the body.
    """

    info: TensorInfo
    given: Bytes | Callable[[], Bytes]

    @property
    def is_copied(self) -> bool:
        """Whether `data` makes a copy each time."""
        return not isinstance(self.given, np.ndarray)

    @property
    def data(self) -> Bytes:
        """Its bytes in C order."""
        return self.given if isinstance(self.given, np.ndarray) else self.given()


@dataclass(frozen=True, slots=True)
class Kind(Generic[ArrayT]):
    """The library of the caller's arrays: numpy if `device` is None, or torch on that device."""

    device: torch.device | None = None

    def build(self, data: Bytes, info: TensorInfo) -> ArrayT:
        """Make an array from its bytes: a view of `data` for numpy and for torch on the CPU."""
        if self.device is None:
            return cast(ArrayT, data.view(NUMPY_DTYPES[info.dtype]).reshape(info.shape))
        return cast(ArrayT, _to_torch(data, info, self.device))


_NUMPY: Kind[Any] = Kind()


def kind_of(inputs: Mapping[str, ArrayT]) -> Kind[ArrayT]:
    """The kind of all `inputs`, which the outputs will have too; numpy if there are no inputs.

    Raises:
        InvalidInput: `inputs` mix numpy arrays with torch tensors, or torch devices.
    """
    if all(type(value) is np.ndarray for value in inputs.values()):
        return _NUMPY
    devices = {name: _device_of(value) for name, value in inputs.items()}
    first = next(iter(devices), None)
    for name, device in devices.items():
        if first is not None and device != devices[first]:
            raise InvalidInput(
                f"{name} must be {_origin(devices[first])} as {first} is, got {_origin(device)}",
                field=name,
            )
    return Kind(None if first is None else devices[first])


def is_array(value: object) -> bool:
    """Whether `value` is a numpy array or a torch tensor."""
    return isinstance(value, np.ndarray) or _is_tensor(value)


def flatten(name: str, value: object) -> Flat:
    """The bytes of an array, in C order and little-endian.

    Raises:
        InvalidInput: it is not an array, or has a dtype that the wire does not have.
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
    code = CODES.get(array.dtype) if _IS_LITTLE else None
    if code is not None and type(array) is np.ndarray and array.flags.c_contiguous:
        return Flat(TensorInfo(name, code, array.shape), array.reshape(-1).view(np.uint8))
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidInput(
            f"{name} must be a plain array, got a masked one: fill it, and send the mask by itself",
            field=name,
        )
    native = array.dtype.newbyteorder("=")
    code = CODES.get(native)
    if code is None:
        raise _unsupported(name, str(array.dtype), [str(d) for d in NUMPY_DTYPES.values()])
    # Not ascontiguousarray: it would turn an array of no dims into one of one dim.
    wire_dtype: np.dtype[Any] = native.newbyteorder(_WIRE_ORDER)

    def copied() -> Bytes:
        plain = np.asarray(array, dtype=wire_dtype, order="C")
        return plain.reshape(-1).view(np.uint8)

    info = TensorInfo(name, code, array.shape)
    return Flat(info, copied if array.nbytes >= LATE_COPY_BYTES else copied())


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
    # Such a tensor stands for values that torch has elsewhere, so it has no bytes to send.
    functorch = lib._C._functorch
    is_legacy = functorch.is_legacy_batchedtensor(tensor)  # of torch.autograd with vectorize=True
    if is_legacy or functorch.is_functorch_wrapped_tensor(tensor):
        hint = "take derivatives with torch.autograd.grad or backward()"
        if is_legacy:
            hint = "leave out vectorize=True or is_grads_batched=True"
        elif functorch.is_batchedtensor(tensor):
            hint = "call the op outside of torch.vmap, on the whole batch"
        raise InvalidInput(
            f"{name} must be a plain tensor, because Warpcall sends it to a server; got one of "
            f"torch.vmap or another transform of torch.func: {hint}",
            field=name,
        )

    def copied() -> Bytes:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        # Not reshape(-1): it keeps the strides of a tensor of one element or none, and
        # view(uint8) needs stride 1.
        flat = plain.as_strided((plain.numel(),), (1,))
        return cast(Bytes, flat.view(lib.uint8).numpy())

    info = TensorInfo(name, code, tuple(tensor.shape))
    is_there = tensor.device.type == "cpu" and tensor.is_contiguous()
    late = not is_there and info.nbytes >= LATE_COPY_BYTES
    return Flat(info, copied if late else copied())


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
    """torch dtypes by wire code. An older torch lacks some of them."""
    lib = sys.modules["torch"]
    names = {code: str(dtype) for code, dtype in NUMPY_DTYPES.items()}
    return {code: getattr(lib, name) for code, name in names.items() if hasattr(lib, name)}


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    lib = sys.modules.get("torch")
    return lib is not None and isinstance(value, lib.Tensor)


def _device_of(value: object) -> torch.device | None:
    """The device of a torch tensor; None for any other value, which `flatten` checks."""
    return value.device if _is_tensor(value) else None


def _origin(device: torch.device | None) -> str:
    return "a numpy array" if device is None else f"a torch tensor on {device}"


def _unsupported(name: str, got: str, allowed: list[str]) -> InvalidInput:
    return InvalidInput(
        f"{name} must have a dtype of {', '.join(allowed)}, got {got}",
        field=name,
    )
