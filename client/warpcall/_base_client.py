"""What both clients share: the server's address, the core, and how a client is pickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from warpcall._config import Config, configure
from warpcall._core import Core
from warpcall._extras.arguments import check_timeout
from warpcall._extras.suggestions import Suggests
from warpcall._progress import Display
from warpcall._tensors import BaseStoredTensor
from warpcall._transport.base import Transport
from warpcall._transport.socket_transport import SocketTransport
from warpcall._transport.waiters import BlockingWaiter
from warpcall.errors import InvalidInput

TIMEOUT_S = 60.0


class BaseClient(Suggests):
    """The parts that both clients share; Client documents the arguments."""

    _stored_type: ClassVar[type[BaseStoredTensor[Any]]]

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: int | None = None,
        progress: bool | None = None,
    ) -> None:
        check_timeout(timeout_s)
        if retries is not None and retries < 0:
            raise InvalidInput(f"retries must be at least 0, got {retries}", field="retries")
        configs = configure(url, api_key)
        self._core = Core(
            configs,
            self.transport_for,
            timeout_s,
            retries,
            Display(progress),
            self._stored_type,
            None if self._blocks else BaseClient.transport_for,
        )
        key = self._core.config.api_key
        arguments = (type(self), self.url, key, timeout_s, retries, progress)
        self._core.recipe = reopened, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has the address and the key. The client that it becomes connects anew."""
        return self._core.recipe

    _blocks: ClassVar[bool]

    @staticmethod
    def transport_for(config: Config) -> Transport:
        """A blocking transport for a server."""
        if config.direct:
            return SocketTransport(config.address, config.authority, BlockingWaiter())
        # Imported here: httpcore takes 50 ms to import.
        from warpcall._transport.httpcore_transport import HttpcoreTransport

        return HttpcoreTransport(config)

    @property
    def url(self) -> str:
        """The server's address; of several, all with commas between them."""
        return ",".join(config.url for config in self._core.configs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def reopened(
    kind: type[BaseClient],
    url: str,
    api_key: str | None,
    timeout_s: float,
    retries: int | None,
    progress: bool | None,
) -> BaseClient:
    """A new client like one that was pickled."""
    options: dict[str, Any] = {"timeout_s": timeout_s, "retries": retries, "progress": progress}
    return kind(url, api_key=api_key, **options)
