"""Shared memory: regions of POSIX segments that local clients register for their tensors.

A segment is opened by its name for each use, and read and written like a file. It is never mapped:
if its client shortened a mapped segment, the server would be killed by SIGBUS. No descriptor stays
open, so that a forgotten region holds no memory of a segment that its client has removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import stat
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from warpcall.errors import Forbidden, InvalidInput, NotFound, TooLarge
from warpcall_service.formats.oip_request import Span
from warpcall_service.http.exchange import SLICE_BYTES, Exchange
from warpcall_service.text import brief

FOLDER = "/dev/shm"  # nosec B108  # where shm_open keeps them; nothing is made there
MAX_REGIONS = 64  # of one user
MAX_NAME = 128  # characters
_KEY = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9._-]{0,199})", re.ASCII)
# A request with one of these headers was made for somebody else: a proxy forwards the requests of
# others, and a browser sends what a web page asks for, not its reader.
INDIRECT = (b"x-forwarded-for", b"x-real-ip", b"forwarded", b"via", b"origin")


@dataclass(frozen=True, slots=True)
class Region:
    """A registered range of a segment.

    Attributes:
        name: chosen by the owner.
        key: the name of the segment, as the owner gave it.
        offset: of the range, in bytes from the start of the segment.
        segment: device and inode of the segment that had this name at the registration.
    """

    name: str
    key: str
    offset: int
    nbytes: int
    segment: tuple[int, int]

    @property
    def gone(self) -> bool:
        """Whether the segment was removed or replaced."""
        try:
            with self._open(os.O_RDONLY):
                return False
        except InvalidInput:
            return True

    def check(self, offset: int, nbytes: int) -> None:
        """Raise InvalidInput unless these bytes are in the region."""
        if offset + nbytes > self.nbytes:
            raise InvalidInput(
                f"the shared memory region {brief(self.name)} has {self.nbytes} bytes, "
                f"got {nbytes} from byte {offset}",
                field=self.name,
            )

    def read(self, offset: int, target: memoryview) -> Generator[None, None, None]:
        """Fill `target` with the bytes of the region from `offset` on, in slices.

        Yields after each slice but the last, so that other requests can run.

        Raises:
            InvalidInput: the segment was removed, replaced or shortened, or cannot be read.
        """
        filled = 0
        with self._open(os.O_RDONLY) as segment:
            while filled < len(target):
                part = target[filled : filled + SLICE_BYTES]
                try:
                    nbytes = os.preadv(segment, [part], self.offset + offset + filled)
                except OSError as error:
                    raise InvalidInput(
                        f"cannot read the shared memory {brief(self.key)}: {error.strerror}",
                        field=self.name,
                    ) from None
                if not nbytes:
                    raise self._too_short(os.fstat(segment).st_size)
                filled += nbytes
                if filled < len(target):
                    yield

    def write(self, offset: int, data: memoryview) -> Generator[None, None, None]:
        """Write `data` to the region from `offset` on, in slices.

        Yields after each slice but the last, so that other requests can run.

        Raises:
            InvalidInput: the segment was removed, replaced or shortened, or the system has no
                memory left for it.
        """
        written = 0
        with self._open(os.O_WRONLY) as segment:
            while written < len(data):
                size = os.fstat(segment).st_size
                if size < self.offset + offset + len(data):  # writing would make it longer
                    raise self._too_short(size)
                part = data[written : written + SLICE_BYTES]
                try:
                    written += os.pwrite(segment, part, self.offset + offset + written)
                except OSError as error:
                    raise InvalidInput(
                        f"cannot write to the shared memory {brief(self.key)}: {error.strerror}",
                        field=self.name,
                    ) from None
                if written < len(data):
                    yield

    @contextlib.contextmanager
    def _open(self, how: int) -> Iterator[int]:
        with _opened(self.key, how) as (descriptor, found):
            if (found.st_dev, found.st_ino) != self.segment:
                raise InvalidInput(
                    f"the shared memory {brief(self.key)} is another one than was registered as "
                    f"{brief(self.name)}; register it again",
                    field=self.name,
                )
            yield descriptor

    def _too_short(self, size: int) -> InvalidInput:
        return InvalidInput(
            f"the shared memory {brief(self.key)} now has {size} bytes, too few for the region "
            f"{brief(self.name)} of {self.nbytes} from byte {self.offset}",
            field=self.name,
        )


async def copy_slices(slices: Generator[None, None, None]) -> None:
    """Read or write all slices; other requests run in between."""
    with contextlib.closing(slices):
        for _ in slices:
            await asyncio.sleep(0)


class SharedMemory:
    """The registry of regions. A user sees only their own, and is `owner` below.

    A user may register any segment that the server's account can open.

    Args:
        max_nbytes: limit on the registered bytes of one user; 0 disables shared memory.
    """

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        self._regions: dict[str, dict[str, Region]] = {}

    def owner(self, exchange: Exchange) -> str:
        """The user whose regions a request may use.

        Raises:
            Forbidden: the client is not on this machine, it made the request for somebody else, or
                shared memory is disabled.
        """
        if not self._max_nbytes:
            raise Forbidden(
                "this server takes no tensors in shared memory: its setting user_max_shared_bytes "
                "is 0"
            )
        for name in INDIRECT:
            if name in exchange.headers:
                raise Forbidden(
                    "shared memory is for programs on the server's own machine that connect "
                    f"themselves, this request has the header {name.decode()}"
                )
        if not _is_from_here(exchange):
            raise Forbidden(
                "shared memory is for programs on the server's own machine: connect to "
                "127.0.0.1, [::1] or its Unix socket"
            )
        return exchange.caller.name

    def register(self, owner: str, name: str, key: str, offset: int, nbytes: int) -> None:
        """Register `nbytes` bytes of the segment `key` from `offset` on, as the region `name`.

        Raises:
            InvalidInput: there is no such segment, it is too short, or the name is taken.
            TooLarge: the owner would have too many regions, or too many bytes.
        """
        if not 1 <= len(name) <= MAX_NAME:
            raise InvalidInput(
                f"the name of a region must have 1 to {MAX_NAME} characters, got {len(name)}",
                field="name",
            )
        with _opened(key, os.O_RDWR) as (_, found):
            if offset + nbytes > found.st_size:
                raise InvalidInput(
                    f"the shared memory {brief(key)} has {found.st_size} bytes, "
                    f"got {nbytes} from byte {offset}",
                    field="byte_size",
                )
        regions = {n: r for n, r in self._regions.get(owner, {}).items() if not r.gone}
        if name in regions:
            raise InvalidInput(
                f"the shared memory region {brief(name)} is registered already", field="name"
            )
        used = sum(region.nbytes for region in regions.values())
        if len(regions) >= MAX_REGIONS or used + nbytes > self._max_nbytes:
            raise TooLarge(
                f"at most {MAX_REGIONS} shared memory regions of {self._max_nbytes} bytes together "
                f"may be registered, got {len(regions) + 1} of {used + nbytes}",
                field="byte_size",
            )
        regions[name] = Region(name, key, offset, nbytes, (found.st_dev, found.st_ino))
        self._regions[owner] = regions

    def regions(self, owner: str) -> list[Region]:
        """All regions of an owner."""
        return list(self._regions.get(owner, {}).values())

    def region(self, owner: str, name: str) -> Region:
        """A region of an owner; raises NotFound if there is none of that name."""
        region = self._regions.get(owner, {}).get(name)
        if region is None:
            raise NotFound(f"you have registered no shared memory region {brief(name)}", field=name)
        return region

    def regions_of(self, owner: str, spans: Sequence[Span]) -> dict[str, Region]:
        """The regions of an owner in which these ranges lie, by name.

        Raises:
            NotFound: the owner has no region of that name.
            InvalidInput: a range is not in its region.
        """
        regions = {span.region: self.region(owner, span.region) for span in spans}
        for span in spans:
            regions[span.region].check(span.offset, span.nbytes)
        return regions

    def unregister(self, owner: str, name: str | None = None) -> None:
        """Remove a region of an owner, or all of them. It is no error if there is none."""
        regions = self._regions.get(owner, {})
        if name is not None:
            regions.pop(name, None)
        if name is None or not regions:
            self._regions.pop(owner, None)


def _is_from_here(exchange: Exchange) -> bool:
    """Whether the client connected from this machine."""
    client = exchange.scope["client"]  # None for a Unix socket, or if the client has left
    if client is None:
        return exchange.connection.is_local
    return ipaddress.ip_address(client[0].partition("%")[0]).is_loopback


@contextlib.contextmanager
def _opened(key: str, how: int) -> Iterator[tuple[int, os.stat_result]]:
    """Open a segment by its name, as shm_open does.

    Raises:
        InvalidInput: the name is invalid, or there is no such segment that the server may open.
    """
    named = _KEY.fullmatch(key)
    if named is None:
        raise InvalidInput(
            "the key of shared memory must be its name: letters, digits, _ . and - (200 at most), "
            f"after / if you like; got {brief(key)}",
            field="key",
        )
    flags = how | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(f"{FOLDER}/{named[1]}", flags)
    except OSError as error:
        raise InvalidInput(
            f"the shared memory {brief(key)} cannot be opened: {error.strerror}", field="key"
        ) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{brief(key)} is no shared memory", field="key")
        yield descriptor, found
    finally:
        os.close(descriptor)
