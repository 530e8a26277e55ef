"""Tensors in shared memory: regions of POSIX segments that local clients lend to the server.

A segment is opened by its name for each use and read and written like a file, never mapped. So a
client that shortens or removes it gets an error where a mapping would kill the server (SIGBUS), and a
region that is left behind holds neither memory nor a descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from warpcall.errors import Forbidden, InvalidInput, NotFound, TooLarge
from warpcall_service.http.exchange import SLICE_BYTES, Exchange
from warpcall_service.oip.peer_uid import PeerUids
from warpcall_service.text import brief

FOLDER = "/dev/shm"  # nosec B108  # where shm_open keeps them; nothing is made there
MAX_REGIONS = 64  # of one owner
MAX_NAME = 128  # characters
_KEY = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9._-]{0,199})", re.ASCII)
_ANYONE = stat.S_IROTH | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Owner:
    """Who registered a region: a user, from an account of this machine."""

    user: str
    uid: int


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of a segment.

    Attributes:
        name: the owner's name for it.
        key: of the segment, as it was given.
        offset: where it begins in the segment.
        segment: device and inode of what had that key when it was registered.
    """

    name: str
    key: str
    offset: int
    nbytes: int
    segment: tuple[int, int]

    @property
    def gone(self) -> bool:
        """Whether its segment was removed."""
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

    async def read(self, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset` of the region on.

        Raises:
            InvalidInput: the segment is gone, or shorter than it was.
        """
        filled = 0
        with self._open(os.O_RDONLY) as segment:
            while filled < len(target):
                part = target[filled : filled + SLICE_BYTES]
                nbytes = os.preadv(segment, [part], self.offset + offset + filled)
                if not nbytes:
                    raise self._too_short(os.fstat(segment).st_size)
                filled += nbytes
                if filled < len(target):
                    await asyncio.sleep(0)  # others have their turn

    async def write(self, offset: int, data: memoryview) -> None:
        """Put `data` from byte `offset` of the region on.

        Raises:
            InvalidInput: the segment is gone, shorter than it was, or the system has no memory left.
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
                    await asyncio.sleep(0)

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


class SharedMemory:
    """The regions of all owners; nobody sees another one's.

    Args:
        max_nbytes: that one owner may have registered; 0 has all refused.
    """

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        self._regions: dict[Owner, dict[str, Region]] = {}
        self._peers = PeerUids()

    @property
    def allowed(self) -> bool:
        """Whether there can be any."""
        return self._max_nbytes > 0

    def owner(self, exchange: Exchange) -> Owner:
        """For whom a request speaks.

        Raises:
            Forbidden: it comes from elsewhere, or shared memory is switched off.
        """
        if not self.allowed:
            raise Forbidden("this server takes no tensors in shared memory")
        return Owner(exchange.caller.name, self._peers.uid(exchange))

    def register(self, owner: Owner, name: str, key: str, offset: int, nbytes: int) -> None:
        """Lend the server `nbytes` bytes from byte `offset` of the segment `key`.

        Raises:
            InvalidInput: no such segment, not so long, or a name that is taken.
            Forbidden: the segment is another account's.
            TooLarge: more than one owner may have.
        """
        if not 1 <= len(name) <= MAX_NAME:
            raise InvalidInput(
                f"the name of a region must have 1 to {MAX_NAME} characters, got {len(name)}",
                field="name",
            )
        with _opened(key, os.O_RDWR) as (_, found):
            if owner.uid not in (0, found.st_uid) and found.st_mode & _ANYONE != _ANYONE:
                raise Forbidden(f"the shared memory {brief(key)} belongs to another account")
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

    def regions(self, owner: Owner) -> list[Region]:
        """All of this owner's."""
        return list(self._regions.get(owner, {}).values())

    def region(self, owner: Owner, name: str) -> Region:
        """One of this owner's; NotFound if there is none of that name."""
        region = self._regions.get(owner, {}).get(name)
        if region is None:
            raise NotFound(f"you have registered no shared memory region {brief(name)}", field=name)
        return region

    def unregister(self, owner: Owner, name: str | None = None) -> None:
        """Forget one of this owner's, or all; what is not there is forgotten already."""
        regions = self._regions.get(owner, {})
        if name is not None:
            regions.pop(name, None)
        if name is None or not regions:
            self._regions.pop(owner, None)


@contextlib.contextmanager
def _opened(key: str, how: int) -> Iterator[tuple[int, os.stat_result]]:
    """The segment of this name, as shm_open opens it.

    Raises:
        InvalidInput: no name of a segment, or there is none of this name that the server may open.
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
