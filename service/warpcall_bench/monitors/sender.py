"""Sends the calls of monitors' URLs: signed, to hosts that the operator lists, in a bounded time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
import time
from collections.abc import Set as AbstractSet

import httpcore

from warpcall import __version__
from warpcall._transport.cancellable import CancellableBackend
from warpcall_bench.monitors.deliveries import Attempt
from warpcall_bench.monitors.webhook_hosts import VARIABLE, origin_of

TIMEOUT_S = 10.0  # of a whole attempt
SIGNATURE = "Warpcall-Signature"
TIMESTAMP = "Warpcall-Timestamp"
DELIVERY = "Warpcall-Delivery"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 of the timestamp, a dot and the body, in hexadecimal digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class Sender:
    """Makes attempts of deliveries.

    Names are looked up in daemon threads of their own, as by the SDK. In the threads that the event
    loop shares, look-ups that are never answered would delay the frames of jobs and the ends of
    checks, and a server that stops would wait for them.

    Args:
        listed: origins that may be called, as `BenchSettings.webhook_origins` has them.
    """

    def __init__(self, listed: AbstractSet[str]) -> None:
        self._listed = listed
        self._context: ssl.SSLContext | None = None

    async def send(self, attempt: Attempt) -> tuple[int | None, str]:
        """Make one attempt. It follows no redirect and reads no body.

        Returns:
            The status of the answer, None if there was none; and why the attempt failed, empty if
            it did not.
        """
        if origin_of(attempt.url) not in self._listed:  # it was listed when the monitor was added
            return None, f"the operator does not list the host of the URL with {VARIABLE}"
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
                ssl_context=self._context, max_connections=1, network_backend=CancellableBackend()
            ) as pool,
            pool.stream(
                "POST",
                attempt.url,
                headers=headers,
                content=attempt.body,
                extensions={"timeout": {"connect": TIMEOUT_S}},
            ) as answer,
        ):
            status: int = answer.status
            return status
