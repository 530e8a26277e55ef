"""Sends the calls of monitors' URLs: signed, to addresses that were checked, within a short time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
import time
from collections.abc import Sequence

import httpcore

from warpcall import __version__
from warpcall_service.monitors.addresses import CheckedBackend, Network
from warpcall_service.monitors.deliveries import Attempt

TIMEOUT_S = 10.0  # of a whole attempt
SIGNATURE = "Warpcall-Signature"
TIMESTAMP = "Warpcall-Timestamp"
DELIVERY = "Warpcall-Delivery"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 of the timestamp, a dot and the body, in hexadecimal digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class Sender:
    """Makes attempts of deliveries.

    Args:
        networks: networks that may be called besides public addresses.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks
        self._context: ssl.SSLContext | None = None

    async def send(self, attempt: Attempt) -> tuple[int | None, str]:
        """Make one attempt. It follows no redirect and reads no body.

        Returns:
            The status of the answer, None if there was none; and why the attempt failed, empty if
            it did not.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._post(attempt)
        except TimeoutError:
            return None, f"there was no answer within {TIMEOUT_S:g} s"
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            return None, str(error) or type(error).__name__
        except (OSError, ValueError) as error:
            return None, str(error) or type(error).__name__
        if 200 <= status < 300:
            return status, ""
        return status, f"the answer had the status {status}, which is not 2xx"

    async def _post(self, attempt: Attempt) -> int:
        encrypted = attempt.url.startswith("https:")
        if self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
        timestamp = str(int(time.time()))
        headers: dict[bytes | str, bytes | str] = {
            "Content-Type": "application/json",
            "Content-Length": str(len(attempt.body)),
            "User-Agent": f"warpcall/{__version__}",
            DELIVERY: attempt.id,
            TIMESTAMP: timestamp,
            SIGNATURE: f"sha256={signature(attempt.secret, timestamp, attempt.body)}",
        }
        async with (
            httpcore.AsyncConnectionPool(
                ssl_context=self._context,
                max_connections=1,
                network_backend=CheckedBackend(self._networks, encrypted=encrypted),
            ) as pool,
            pool.stream("POST", attempt.url, headers=headers, content=attempt.body) as answer,
        ):
            status: int = answer.status
            return status
