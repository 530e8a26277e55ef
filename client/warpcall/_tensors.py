"""Tensors that stay on a server's device: what the SDK knows of them, and what it can do with them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias

import numpy as np

from warpcall import wire
from warpcall._arrays import NUMPY_DTYPES, ArrayT, Kind
from warpcall._blocking import run_now
from warpcall.errors import InvalidInput, TransportError

if TYPE_CHECKING:
    from warpcall._core import Core


class BaseStoredTensor(Generic[ArrayT]):
    """A tensor on a server's device.

    Attributes:
        id: its name there; only its user's keys reach it.
        dtype: as numpy has it.
        shape, nbytes: its size.
        device: where it is, such as "cuda:0". What is used in one call must be on one device.
        expires: when it goes unless it is used before; each use puts this off.
    """

    def __init__(self, core: Core, record: Any, kind: Kind[ArrayT]) -> None:
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

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.id!r}, {self.dtype}, {self.shape}, on {self.device!r} "
            f"of {self._core.config.url})"
        )


class StoredTensor(BaseStoredTensor[ArrayT]):
    """A tensor on a server's device, as Client.put gives it; in calls it stands for an array."""

    def get(self) -> ArrayT:
        """A copy of it here, of the kind of array that it was made of.

        Raises:
            NotFound: it is gone; the message says why.
        """
        return run_now(self._core.fetch(self.id, self._kind))

    def delete(self) -> None:
        """Free it. Once it is gone this does nothing."""
        run_now(self._core.delete(self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()


class AsyncStoredTensor(BaseStoredTensor[ArrayT]):
    """StoredTensor for AsyncClient; its methods are awaited."""

    async def get(self) -> ArrayT:
        """StoredTensor.get, awaited."""
        return await self._core.fetch(self.id, self._kind)

    async def delete(self) -> None:
        """StoredTensor.delete, awaited."""
        await self._core.delete(self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.delete()


TensorInput: TypeAlias = ArrayT | BaseStoredTensor[ArrayT]  # what a call takes


def split(
    core: Core, inputs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, BaseStoredTensor[Any]]]:
    """The inputs that are sent, and those that are there; without those that are None.

    Raises:
        InvalidInput: one that is on another server.
    """
    stored = {name: value for name, value in inputs.items() if isinstance(value, BaseStoredTensor)}
    for name, tensor in stored.items():
        there = tensor._core.config.url
        if there != core.config.url:
            raise InvalidInput(
                f"{name} must be on {core.config.url}, got a tensor on {there}", field=name
            )
    sent = {n: v for n, v in inputs.items() if v is not None and n not in stored}
    return sent, stored


def headers_of(
    stored: Mapping[str, BaseStoredTensor[Any]],
    store: Mapping[str, str],
    ttl_s: float | None = None,
    device: str | None = None,
) -> dict[str, str]:
    """The headers that name them, what is to be kept under which ids, until when and where.

    Raises:
        InvalidInput: a name that no header can have.
    """
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
    """An id that is not in use. It is drawn here so that a request can be sent again: what it
    keeps then takes the place of what the first one kept."""
    return secrets.token_hex(8)
