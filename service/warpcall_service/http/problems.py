"""Problems that only the HTTP layer raises, and the responses of all problems (RFC 9457)."""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import quote

from starlette.types import Scope

from warpcall.errors import MEDIA_TYPE, OnOtherNode, Problem, Unauthorized
from warpcall_service.text import MAX_DETAIL_CHARS, MAX_FIELD_CHARS

Headers = list[tuple[bytes, bytes]]


class BadRequest(Problem):
    """Bytes that are not an HTTP request."""

    status, code, title = 400, "bad-request", "Bad request"


class MethodNotAllowed(Problem):
    """The path exists, but not with this method."""

    status, code, title = 405, "method-not-allowed", "Method not allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"this route takes {allowed}, got {method}", field="method")
        self.allowed = allowed


class RangeNotSatisfiable(Problem):
    """The range of a request begins behind the end of the file."""

    status, code, title = 416, "range-not-satisfiable", "Range not satisfiable"

    def __init__(self, given: str, nbytes: int) -> None:
        super().__init__(
            f"range must begin within the {nbytes} bytes of the file, got {given}", field="range"
        )
        self.nbytes = nbytes


class HeadTooLarge(Problem):
    """The request line and headers have more bytes, or more lines, than the server accepts."""

    status, code, title = 431, "head-too-large", "Request header fields too large"


class Internal(Problem):
    """A fault of the server. The response has no details; the log has them with the request id."""

    status, code, title = 500, "internal", "Internal error"

    def __init__(self) -> None:
        super().__init__("the server failed on this request; its log has the cause")


def is_oip(path: str) -> bool:
    """Whether this path belongs to the Open Inference Protocol."""
    return path == "/v2" or path.startswith("/v2/")


def render(problem: Problem, request_id: str | None, path: str = "") -> tuple[int, Headers, bytes]:
    """Return status, headers and body of the response, in the form of the protocol of `path`."""
    members: dict[str, Any]
    detail = problem.detail[:MAX_DETAIL_CHARS]  # messages quote names that callers have chosen
    if is_oip(path):
        members, media_type = {"error": detail}, "application/json"
    else:
        members, media_type = {**problem.to_json(), "detail": detail}, MEDIA_TYPE
        if problem.field is not None:
            members["field"] = problem.field[:MAX_FIELD_CHARS]
        if request_id is not None:
            members["request_id"] = request_id
    body = json.dumps(members).encode()
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(problem.retry_after_s))).encode()))
    if isinstance(problem, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(problem, MethodNotAllowed):
        headers.append((b"allow", problem.allowed.encode()))
    if isinstance(problem, RangeNotSatisfiable):
        headers.append((b"content-range", f"bytes */{problem.nbytes}".encode()))
    return problem.status, headers, body


def redirection(problem: Problem, scope: Scope) -> Headers:
    """The header that sends the client to the server which can answer; none for most problems."""
    if not isinstance(problem, OnOtherNode) or problem.url is None:
        return []
    query = scope["query_string"]
    target = (problem.url + quote(scope["path"])).encode() + (b"?" + query if query else b"")
    return [(b"location", target)]
