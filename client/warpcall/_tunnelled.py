"""The way to a server over TLS or through a proxy: httpx."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping

import httpx

from warpcall._http import ConnectionFailed, Reply, Request, Stream, content_length, joined
from warpcall.errors import TransportError

LIMITS = httpx.Limits(max_connections=32, max_keepalive_connections=16)


class HttpxRoad:
    """The blocking flavour; safe to share between threads."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, limits=LIMITS)

    async def send(self, request: Request) -> Reply:
        with _translated(self._client.base_url):
            built = _built(self._client, request, _pieces(request))
            response = self._client.send(built, stream=True)
            try:
                intake = _Intake(response, request)
                for chunk in response.iter_raw():
                    intake.take(chunk)
                return intake.reply()
            finally:
                response.close()

    async def open(self, request: Request) -> Stream:
        with _translated(self._client.base_url):
            built = _built(self._client, request, _pieces(request))
            return _Stream(self._client.send(built, stream=True))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # never on a loop: see run_now

    async def close(self) -> None:
        self._client.close()


class AsyncHttpxRoad:
    """The asyncio flavour."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, limits=LIMITS)

    async def send(self, request: Request) -> Reply:
        with _translated(self._client.base_url):
            built = _built(self._client, request, _pieces_async(request))
            response = await self._client.send(built, stream=True)
            try:
                intake = _Intake(response, request)
                async for chunk in response.aiter_raw():
                    intake.take(chunk)
                return intake.reply()
            finally:
                await response.aclose()

    async def open(self, request: Request) -> Stream:
        with _translated(self._client.base_url):
            built = _built(self._client, request, _pieces_async(request))
            return _AsyncStream(await self._client.send(built, stream=True))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._client.aclose()


class _Stream:
    """An answer that is read piece by piece; httpx waits for each as long as for the first."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.iter_raw()
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def read(self, quiet_s: float) -> bytes:
        with _translated(self._response.url):
            return next(self._chunks, b"")

    async def close(self) -> None:
        self._response.close()


class _AsyncStream:
    """The same, in the running loop."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.aiter_raw()
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def read(self, quiet_s: float) -> bytes:
        with _translated(self._response.url):
            return await anext(self._chunks, b"")

    async def close(self) -> None:
        await self._response.aclose()


def _pieces(request: Request) -> Iterator[bytes]:
    if request.body is not None:
        for piece in request.body.slices():
            yield piece  # type: ignore[misc]  # h11 and ssl take any buffer: no copy into bytes
            request.meter.sent(piece.nbytes)


async def _pieces_async(request: Request) -> AsyncIterator[bytes]:
    for piece in _pieces(request):
        yield piece


class _Intake:
    """Collects an answer into one buffer."""

    def __init__(self, response: httpx.Response, request: Request) -> None:
        self._request = request
        self._status = response.status_code
        self._headers = {name.lower(): value for name, value in response.headers.items()}
        announced = content_length(self._headers)
        self._buffer = None if announced is None else request.memory.take(announced)
        self._chunks: list[bytes] = []
        self._at = 0
        request.meter.expect(announced or 0)

    def take(self, chunk: bytes) -> None:
        if not self._request.remaining_s():
            raise httpx.ReadTimeout("the deadline passed")
        if self._buffer is None:
            self._chunks.append(chunk)
        else:
            self._buffer.data[self._at : self._at + len(chunk)] = chunk
        self._at += len(chunk)
        self._request.meter.received(len(chunk))

    def reply(self) -> Reply:
        body = joined(self._chunks) if self._buffer is None else self._buffer
        return Reply(self._status, self._headers, body)


def _built(
    client: httpx.Client | httpx.AsyncClient,
    request: Request,
    pieces: Iterator[bytes] | AsyncIterator[bytes],
) -> httpx.Request:
    headers = dict(request.headers)
    if request.body is not None:
        headers["Content-Length"] = str(request.body.nbytes)
    return client.build_request(
        request.method,
        request.path,
        headers=headers,
        content=None if request.body is None else pieces,
        timeout=request.remaining_s(),
    )


@contextlib.contextmanager
def _translated(url: httpx.URL) -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise TransportError(f"{url.host} did not answer in time") from error
    except httpx.ConnectError as error:
        raise ConnectionFailed(f"cannot reach {url.host}: {error}") from error
    except httpx.RequestError as error:
        raise ConnectionFailed(f"the connection to {url.host} broke: {error}") from error
