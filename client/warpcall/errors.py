"""Everything that can go wrong, as one tree shared by the SDK and the server.

WarpcallError
├── TransportError            no answer came: refused, reset, timed out on the way
├── JobFailed                 a benchmark job ended without success
└── Problem                   the server answered with an RFC 9457 problem
    ├── NotFound          404 not-found
    ├── InvalidInput      422 invalid-input
    ├── TooLarge          413 too-large
    ├── UnsupportedMedia  415 unsupported-media
    ├── Unauthorized      401 unauthorized
    ├── Forbidden         403 forbidden
    ├── Busy              429 busy            (retried by the SDK)
    ├── KernelFailed      500 kernel-failed
    ├── Unavailable       503 unavailable     (retried by the SDK)
    └── TimedOut          504 timed-out

The server raises these classes, the wire carries them, the SDK raises them again: a message
crosses unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from warpcall._text import clean

TYPE_PREFIX = "urn:warpcall:problem:"
MEDIA_TYPE = "application/problem+json"


class WarpcallError(Exception):
    """Base of every error of this package."""


class TransportError(WarpcallError):
    """No answer came from the server; `__cause__` holds the transport's own error.

    Args:
        message: may quote the server; what a terminal would obey is escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(clean(message))


class JobFailed(WarpcallError):
    """A benchmark job ended in another way than well; what it had measured is kept.

    Args:
        job: as the server describes it.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        reasons = dict.fromkeys(str(job.get(name)) for name in ("state", "exit_class"))
        why = f": {job['detail']}" if job.get("detail") else ""
        super().__init__(clean(f"the job {job['id']} did not succeed: {', '.join(reasons)}{why}"))
        self.job = dict(job)


class Problem(WarpcallError):
    """An answer that says what is wrong.

    Args:
        detail: a sentence: what is wrong, what is allowed, what came.
        field: the tensor, parameter, header or query item at fault, if one is.
        retry_after_s: seconds after which another try may succeed.
        request_id: the answer's X-Request-Id.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "problem"
    title: ClassVar[str] = "Something went wrong"

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.retry_after_s = retry_after_s
        self.request_id = request_id

    def to_json(self) -> dict[str, Any]:
        """The RFC 9457 members of this problem."""
        members = {
            "type": TYPE_PREFIX + self.code,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "field": self.field,
            "request_id": self.request_id,
        }
        return {name: value for name, value in members.items() if value is not None}

    @staticmethod
    def from_json(
        status: int, members: Mapping[str, Any], retry_after_s: float | None = None
    ) -> Problem:
        """The problem that an answer carries; by its type, or else by its status."""
        code = str(members.get("type", "")).removeprefix(TYPE_PREFIX)
        kinds = [k for k in Problem.__subclasses__() if k.__module__ == __name__]
        kind = next((k for k in kinds if k.code == code), None) or next(
            (k for k in kinds if k.status == status), Problem
        )
        return kind(
            str(members.get("detail") or members.get("title") or f"the server answered {status}"),
            field=members.get("field"),
            retry_after_s=retry_after_s,
            request_id=members.get("request_id"),
        )


class NotFound(Problem):
    """No such route, op or thing."""

    status, code, title = 404, "not-found", "Not found"


class InvalidInput(Problem):
    """A tensor, parameter or body that cannot be taken."""

    status, code, title = 422, "invalid-input", "Invalid input"


class TooLarge(Problem):
    """More bytes than the server takes in one call."""

    status, code, title = 413, "too-large", "Too large"


class UnsupportedMedia(Problem):
    """A content type that the server does not read, or cannot answer in."""

    status, code, title = 415, "unsupported-media", "Unsupported media type"


class Unauthorized(Problem):
    """A missing or wrong API key."""

    status, code, title = 401, "unauthorized", "Unauthorized"


class Forbidden(Problem):
    """A key whose role does not allow this."""

    status, code, title = 403, "forbidden", "Forbidden"


class Busy(Problem):
    """No room at present; try again after `retry_after_s`."""

    status, code, title = 429, "busy", "Busy"


class KernelFailed(Problem):
    """The kernel raised, or ran out of device memory."""

    status, code, title = 500, "kernel-failed", "Kernel failed"


class Unavailable(Problem):
    """The device's process is starting or was lost; calls are pure, so try again."""

    status, code, title = 503, "unavailable", "Unavailable"


class TimedOut(Problem):
    """The deadline passed before the answer was there."""

    status, code, title = 504, "timed-out", "Timed out"
