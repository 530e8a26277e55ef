"""Evaluations in the SDK: one candidate with one verdict, and many with a verdict each."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from warpcall import wire
from warpcall._core import Core
from warpcall._jobs.client import given
from warpcall._jobs.parse import parse
from warpcall._jobs.source import Code, send_source, source_of
from warpcall._jobs.verified import verified_members
from warpcall._tensors import new_id
from warpcall.errors import (
    Busy,
    ConnectionFailed,
    InvalidInput,
    Problem,
    TimedOut,
    TransportError,
    Unavailable,
)
from warpcall.evaluations import Evaluation
from warpcall.jobs import Precision, Priority
from warpcall.jobs.request import JobRequest

PATH = wire.EVALUATIONS_PATH
ACCEPTED = (200, 202)
WAIT_S = 20  # of one request; the next one continues
HEAD_S = 60.0  # until a batch begins to answer
QUIET_S = 60.0  # the server sends an empty line each 15 s
PAUSE_S = 2.0
MOST_SOURCES = 256  # of a batch
MOST_BYTES = 3 << 20  # of the sources of a batch: the server takes 4 MiB of JSON
MAX_LINE_BYTES = 1 << 20

Candidate = Code | Mapping[str, Any]
"""A path of a file, a source, a function; or the members `source`, `function`, `name`, `verified`,
`language` and `launches` of a candidate of the HTTP API, or its `implementation`."""


class EvaluationOptions(TypedDict, total=False):
    """How candidates are evaluated.

    Attributes:
        cases, sweep: as in `JobRequest`. One of them is needed, with at most 64 cases.
        precision: "quick" by default, "standard", "publish", or "check" to time nothing.
        baseline: what times are compared with; by default "warpcall", for a problem "torch".
        priority, tags, private, gpu, node: as in `JobRequest`.
        verified: whether only the compiled kernels of the sources shall be timed, launched by the
            server's own code: docs/verified-kernels.md. CUDA C++ always is verified.
        keep: whether the sources stay stored as uploads after their jobs.
        fresh: measure again what was measured before.
    """

    cases: Sequence[Mapping[str, object]] | None
    sweep: Mapping[str, object] | None
    precision: Precision | None
    baseline: str | None
    priority: Priority | None
    tags: Sequence[str] | None
    private: bool | None
    verified: bool
    keep: bool
    fresh: bool
    gpu: str | None
    node: str | None


async def evaluate(
    core: Core, op: str, candidate: Candidate, options: EvaluationOptions, timeout_s: float | None
) -> Evaluation:
    """As `Client.evaluate`."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    headers = {"Idempotency-Key": new_id(), **_wait(until)}
    member = await member_of(core, candidate, op, options.get("verified", False))
    body = {**_body(op, options), **member}
    found = await _asked(core, "POST", PATH, body, headers)
    while not found.done:
        if until is not None and time.monotonic() >= until:
            raise TimedOut(f"the evaluation {found.id} had not ended in time; it goes on")
        found = await _asked(core, "GET", f"{PATH}/{found.id}", None, _wait(until))
    return found


async def evaluate_many(
    core: Core, op: str, candidates: Iterable[Candidate], options: EvaluationOptions
) -> AsyncGenerator[Evaluation, None]:
    """As `Client.evaluate_many`."""
    body = _body(op, options)
    some: list[tuple[int, dict[str, Any]]] = []
    nbytes = 0
    for index, candidate in enumerate(candidates):
        member = await member_of(core, candidate, op, options.get("verified", False))
        more = len(json.dumps(member))
        if some and (len(some) == MOST_SOURCES or nbytes + more > MOST_BYTES):
            async for found in _batch(core, body, some):
                yield found
            some, nbytes = [], 0
        some.append((index, member))
        nbytes += more
    if some:
        async for found in _batch(core, body, some):
            yield found


async def member_of(
    core: Core, candidate: Candidate, op: str, verified: bool = False
) -> dict[str, Any]:
    """A candidate as the HTTP API takes it, after its other files have been sent.

    Args:
        verified: whether only its kernels shall be timed, if it is a source.

    Raises:
        InvalidInput, TooLarge, OSError: as `implementations.add`.
    """
    if isinstance(candidate, Mapping):
        return (
            {"verified": True, **candidate} if verified and "source" in candidate else {**candidate}
        )
    source = source_of(candidate, op=op)
    members = verified_members(source, verified, None, None)
    return given({**await send_source(core, source), "name": source.name, **members})


async def _batch(
    core: Core, body: Mapping[str, Any], some: Sequence[tuple[int, dict[str, Any]]]
) -> AsyncGenerator[Evaluation, None]:
    """The verdicts on at most MOST_SOURCES candidates. What has none when a connection is lost is sent
    again; what was measured meanwhile is not measured again."""
    left = dict(enumerate(some))
    heard = time.monotonic()
    while left:
        sent = [*left.items()]
        sources = [member for _, (_, member) in sent]
        stream = None
        try:
            stream = await core.open(
                f"{PATH}/batch", {"Accept": "*/*"}, HEAD_S, {**body, "sources": sources}
            )
            lines = Lines()
            while stream is not None and (piece := await stream.read(QUIET_S)):
                heard = time.monotonic()
                for line in lines.feed(piece):
                    found = _line(line, len(sent))
                    number, (index, _) = sent[found.index]
                    if left.pop(number, None) is not None:
                        yield replace(found, index=index)
            if left:
                raise ConnectionFailed("the server ended the batch before all verdicts")
        except (ConnectionFailed, Busy, Unavailable):
            if time.monotonic() > heard + core.timeout_s or core.retries == 0:
                raise
        finally:
            if stream is not None:
                await stream.close()
        if left:
            await core.transport.sleep(PAUSE_S)


class Lines:
    """Splits a stream into its lines, without the empty ones."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that end in this piece.

        Raises:
            TransportError: a line has no end.
        """
        self._rest += piece
        if b"\n" not in piece:  # else a long line in small pieces would be split again for each
            if len(self._rest) > MAX_LINE_BYTES:
                raise TransportError("the server must send lines of JSON, got an endless one")
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [bytes(line) for line in lines if line.strip()]


def _line(line: bytes, most: int) -> Evaluation:
    try:
        payload = json.loads(line)
    except (ValueError, RecursionError):
        raise TransportError(f"the server must send lines of JSON, got {line!r:.60}") from None
    if isinstance(payload, dict) and isinstance(payload.get("status"), int) and "type" in payload:
        raise Problem.from_json(payload["status"], payload)
    found = parse(Evaluation, payload, "an evaluation")
    if not 0 <= found.index < most:
        raise TransportError(f"the server must send a verdict on a source, got {found.index}")
    return found


async def _asked(
    core: Core, method: str, path: str, body: object, headers: Mapping[str, str]
) -> Evaluation:
    payload = await core.request_json(method, path, body, headers, ACCEPTED)
    return parse(Evaluation, payload, "an evaluation")


def _wait(until: float | None) -> dict[str, str]:
    left_s = WAIT_S if until is None else min(WAIT_S, max(0.0, until - time.monotonic()))
    return {"Prefer": f"wait={left_s:.0f}"}


def _body(op: str, options: EvaluationOptions) -> dict[str, Any]:
    """The members of a request besides its candidates. Dtypes are sent as codes."""
    cases, sweep = options.get("cases"), options.get("sweep")
    if (cases is None) == (sweep is None):
        raise InvalidInput("give either cases or sweep", field="cases")
    spec = JobRequest(op, cases=cases, sweep=sweep).to_dict()
    others = {n: value for n, value in options.items() if n not in spec and n != "verified"}
    return given({**spec, **others})
