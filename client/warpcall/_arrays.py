"""Converts numpy arrays and torch tensors to bytes of the wire and back, without needless copies.

This module never imports torch. A caller who passes a torch tensor has imported it already.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeGuard, TypeVar, cast

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
# What an input may be in place of an array, if numpy makes a tensor of numbers of it.
Numbers: TypeAlias = bool | int | float | Sequence[Any]
PLAIN = (bool, int, float, list, tuple, np.generic)

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


def arrays_of(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs, with arrays in place of Python's numbers and lists of numbers.

    They become arrays of the library and the device of the others. A float beside floats takes
    their dtype, as in torch, and so does an integer beside integers, if they reach its value. All
    others are as numpy makes them: int64, float64 or bool.

    Raises:
        InvalidInput: a list is not one of numbers of one shape, or a number needs more than 64
            bits.
    """
    given = {name: value for name, value in inputs.items() if isinstance(value, PLAIN)}
    if not given:
        return inputs
    others = [value for name, value in inputs.items() if value is not None and name not in given]
    like = next((value for value in others if is_array(value)), None)
    dtype = next((_numpy_dtype(v.dtype) for v in others if hasattr(v, "dtype")), None)
    made: dict[str, Any] = {name: _array(name, value, dtype) for name, value in given.items()}
    if _is_tensor(like):
        kind: Kind[Any] = Kind(like.device)
        made = {name: _as_kind(name, array, kind) for name, array in made.items()}
    return {**inputs, **made}


def _array(name: str, value: object, dtype: np.dtype[Any] | None) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of several lengths
        array = np.asarray(None)
    if array.size == 0:
        return array.astype(dtype) if dtype is not None else array
    if array.dtype not in NUMPY_DTYPES.values():
        raise InvalidInput(
            f"{name} must be a number or a list of numbers of one shape, of 64 bits at most, "
            f"got {value!r:.60}",
            field=name,
        )
    if dtype is None or _is_integer(array.dtype) is not _is_integer(dtype):
        return array
    if isinstance(value, np.generic):  # it has a dtype that its owner chose
        return array
    if _is_integer(dtype):
        reach = np.iinfo(dtype)
        if int(array.min()) < reach.min or int(array.max()) > reach.max:
            return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _is_integer(dtype: np.dtype[Any]) -> bool | None:
    """Whether it is one of integers; None for bool."""
    return None if dtype.kind == "b" else dtype.kind in "iu"


def _numpy_dtype(dtype: object) -> np.dtype[Any] | None:
    """The dtype of an array or a stored tensor; None if numpy has none for it."""
    if isinstance(dtype, np.dtype):
        return dtype
    name = str(dtype).removeprefix("torch.")
    return next((known for known in NUMPY_DTYPES.values() if str(known) == name), None)


def _as_kind(name: str, array: Array, kind: Kind[Any]) -> Any:
    flat = _from_numpy(name, array)
    return kind.build(flat.data.copy(), flat.info)


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
