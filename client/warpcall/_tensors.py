"""Stored tensors: tensors that stay on a server's device between calls."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from warpcall import wire
from warpcall._arrays import CODES, NUMPY_DTYPES, ArrayT, Kind, Numbers
from warpcall._blocking import run_now, untraced
from warpcall._extras.tables import html_table
from warpcall._nodes.exchanges import Exchanges
from warpcall._nodes.targets import HOME, SPREAD, STORE, node_of
from warpcall.errors import InvalidInput, TransportError

TABLE = ("id", "dtype", "shape", "nbytes", "device", "expires")


class BaseStoredTensor(Generic[ArrayT]):
    """A tensor on a server's device.

    Attributes:
        id: its id on the server. Only API keys of the same user can use it.
        dtype: the numpy dtype of its elements.
        shape: its shape.
        nbytes: its size in bytes.
        device: the device that holds it, such as "cuda:0". All stored tensors of one call must be
            on one device.
        expires: the time in UTC at which the server deletes it unless it is used before. This is
            the time as of the answer that created this object; each use on the server moves it.
    """

    def __init__(self, core: Exchanges, record: Any, kind: Kind[ArrayT]) -> None:
        self._core = core
        self._kind: Kind[ArrayT] = kind
        try:
            self.id = str(record["id"])
            wire.check_tensor_id(self.id, "id")
            self.dtype: np.dtype[Any] = NUMPY_DTYPES[record["dtype"]]
            self.shape = tuple(int(size) for size in record["shape"])
            self.nbytes = int(record["nbytes"])
            self.device = str(record["device"])
            self.expires = datetime.fromisoformat(record["expires"])
        except (TypeError, KeyError, ValueError, OverflowError, InvalidInput) as error:
            raise TransportError(
                f"the server must describe a stored tensor, got {record!r:.60}"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has the id, and the address and the key of the client."""
        record = {
            "id": self.id,
            "dtype": CODES[self.dtype],
            "shape": self.shape,
            "nbytes": self.nbytes,
            "device": self.device,
            "expires": self.expires.isoformat(),
        }
        return reopened_tensor, (self._core.recipe, type(self), record, self._kind)

    def _repr_html_(self) -> str:
        about = {name: getattr(self, name) for name in TABLE}
        return html_table(TABLE, [about])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.id!r}, {self.dtype}, {self.shape}, on {self.device!r} "
            f"of {self._core.config.url})"
        )


class StoredTensor(BaseStoredTensor[ArrayT]):
    """A tensor on a server's device, from Client.put. Calls take it in place of an array."""

    @untraced
    def get(self, *, timeout_s: float | None = None) -> ArrayT:
        """Copy it from the server, as the kind of array that it was made from.

        Args:
            timeout_s: seconds that this call may take; None means the client's.

        Raises:
            NotFound: it was deleted or expired, or its worker process was lost; the message says
                which.
        """
        return run_now(self._core.fetch(self.id, self._kind, timeout_s))

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Copy it from the server, for `np.asarray(stored)` and numpy's functions."""
        if copy is False:
            raise ValueError("a stored tensor can only be copied from its server")
        array: npt.NDArray[Any] = run_now(self._core.fetch(self.id, Kind()))
        return array if dtype is None else array.astype(dtype, copy=False)

    def delete(self) -> None:
        """Delete it on the server. If it is gone already, nothing happens."""
        run_now(self._core.delete(self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()


class AsyncStoredTensor(BaseStoredTensor[ArrayT]):
    """StoredTensor for AsyncClient; its methods are awaited."""

    async def get(self, *, timeout_s: float | None = None) -> ArrayT:
        """StoredTensor.get, awaited."""
        return await self._core.fetch(self.id, self._kind, timeout_s)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> npt.NDArray[Any]:
        raise TypeError("a stored tensor of AsyncClient must be awaited: await stored.get()")

    async def delete(self) -> None:
        """StoredTensor.delete, awaited."""
        await self._core.delete(self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.delete()


# An input of a call: an array, a stored tensor, or a number or list of numbers.
TensorInput: TypeAlias = ArrayT | BaseStoredTensor[ArrayT] | Numbers


def split(
    core: Exchanges, inputs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, BaseStoredTensor[Any]]]:
    """Separate the inputs that are sent from the stored tensors. Inputs that are None are left out.

    Raises:
        InvalidInput: a stored tensor is on another server.
    """
    if not any(isinstance(value, BaseStoredTensor) for value in inputs.values()):
        return {name: value for name, value in inputs.items() if value is not None}, {}
    stored = {name: value for name, value in inputs.items() if isinstance(value, BaseStoredTensor)}
    for name, tensor in stored.items():
        there = tensor._core.config.url
        if there != core.config.url and node_of(tensor.id) is None:
            raise InvalidInput(
                f"{name} must be on {core.config.url}, got a tensor on {there}", field=name
            )
    sent = {n: v for n, v in inputs.items() if v is not None and n not in stored}
    return sent, stored


def route_of(stored: Iterable[BaseStoredTensor[Any]], *, stores: bool) -> str:
    """Which servers can run a call that takes these stored tensors, as in `Targets.choose`.

    Args:
        stores: whether the call stores outputs.

    Raises:
        InvalidInput: they are on several servers.
    """
    owners = {node_of(tensor.id) or HOME: tensor.id for tensor in stored}
    if len(owners) > 1:
        raise InvalidInput(
            "the stored tensors of a call must be on one server, got "
            f"{' and '.join(sorted(owners.values()))}: the part after the dot names the server",
            field="inputs",
        )
    return next(iter(owners), STORE if stores else SPREAD)


def headers_of(
    stored: Mapping[str, BaseStoredTensor[Any]],
    store: Mapping[str, str],
    ttl_s: float | None = None,
    device: str | None = None,
) -> dict[str, str]:
    """The request headers of a call on stored tensors.

    Args:
        stored: stored tensors by the names of the inputs that they stand for.
        store: ids under which to store outputs, by the names of the outputs.
        ttl_s: seconds after its last use until a tensor that the call stores is deleted.
        device: the device on which to store, such as "cuda:1".

    Raises:
        InvalidInput: a name has characters that a header cannot carry.
    """
    if not stored and not store and ttl_s is None and device is None:
        return {}
    headers = {}
    for name in (*stored, *store, device or ""):
        if not name.isascii() or not name.isprintable() or {",", "="} & set(name):
            raise InvalidInput(
                f"names of tensors and devices must be plain text, got {name!r}", field=name
            )
    if device is not None:
        headers[wire.DEVICE_HEADER] = device
    if stored:
        headers[wire.TENSORS_HEADER] = wire.encode_names(
            {name: tensor.id for name, tensor in stored.items()}
        )
    if store:
        headers[wire.STORE_HEADER] = wire.encode_names(store)
    if ttl_s is not None:
        headers[wire.TTL_HEADER] = f"{ttl_s:.3f}"
    return headers


def new_id() -> str:
    """A random id of 16 characters.

    The client draws it, not the server, so that a request can be repeated: the repeated request
    stores under the same id and replaces what the first one stored.
    """
    return secrets.token_hex(8)


@functools.lru_cache(16)
def client_of(recipe: tuple[Any, ...]) -> Any:
    """The client of this process for stored tensors that were pickled with this recipe."""
    make, arguments = recipe
    return make(*arguments)


def reopened_tensor(
    recipe: tuple[Any, ...], kind: type[BaseStoredTensor[Any]], record: Any, arrays: Kind[Any]
) -> BaseStoredTensor[Any]:
    """A handle of a stored tensor that was pickled."""
    return kind(client_of(recipe)._core, record, arrays)
