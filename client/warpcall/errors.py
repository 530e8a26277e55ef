"""The errors of Warpcall, as one tree that the SDK and the server share.

WarpcallError
├── TransportError            no answer arrived: the connection was refused, broke or timed out
│   └── ConnectionFailed      the connection was refused or broke (retried by the SDK)
├── JobFailed                 a benchmark job ended without success
└── Problem                   the server answered with an RFC 9457 problem
    ├── OnOtherNode       307 on-other-node
    ├── NotFound          404 not-found
    ├── NodeGone          410 node-gone
    ├── InvalidInput      422 invalid-input
    ├── TooLarge          413 too-large
    ├── UnsupportedMedia  415 unsupported-media
    ├── Unauthorized      401 unauthorized
    ├── Forbidden         403 forbidden
    ├── Busy              429 busy            (retried by the SDK)
    ├── KernelFailed      500 kernel-failed
    ├── Unavailable       503 unavailable     (retried by the SDK)
    └── TimedOut          504 timed-out
        └── CallTimedOut      also a TransportError: no answer came within the client's timeout_s

The server raises these classes and sends them as problems; the SDK raises the same classes, with
the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from warpcall._text import clean

if TYPE_CHECKING:
    from warpcall.jobs import JobInfo

TYPE_PREFIX = "urn:warpcall:problem:"
MEDIA_TYPE = "application/problem+json"


class WarpcallError(Exception):
    """Base of every error of this package."""


class TransportError(WarpcallError):
    """No usable answer came from the server; `__cause__` holds the transport's own error.

    Args:
        message: may quote the server. Control characters in it are escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(clean(message))


class ConnectionFailed(TransportError):
    """The connection was refused or broke. Another try may succeed."""


class JobFailed(WarpcallError):
    """A benchmark job ended without success. The server keeps the cases that it had measured.

    Args:
        job: the job at its end.
    """

    def __init__(self, job: JobInfo) -> None:
        reasons = dict.fromkeys((job.state, str(job.exit_class)))
        why = f": {job.detail}" if job.detail else ""
        super().__init__(clean(f"the job {job.id} did not succeed: {', '.join(reasons)}{why}"))
        self.job = job


class Problem(WarpcallError):
    """An error answer of the server, in the form of RFC 9457.

    Args:
        detail: one sentence that names what is wrong, what is allowed and what came.
        field: the tensor, parameter, header or query item at fault; None if there is no single one.
        retry_after_s: seconds after which another try may succeed; None if the server did not say.
        request_id: the id of the request in the server's log, from the answer's X-Request-Id.
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
        """The problem of an error answer, of the class for its type, or else for its status."""
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
    """There is no such route, op, job or stored tensor."""

    status, code, title = 404, "not-found", "Not found"


class OnOtherNode(Problem):
    """Another server has the stored tensor or file. The message and the answer's Location have its address.

    The SDK follows it if the servers list the address, and otherwise raises this error.

    Args:
        url: address of that server; None on the client.
    """

    status, code, title = 307, "on-other-node", "On another server"

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
        url: str | None = None,
    ) -> None:
        super().__init__(detail, field=field, retry_after_s=retry_after_s, request_id=request_id)
        self.url = url


class NodeGone(Problem):
    """The server that has the stored tensor or file is gone; the message says which one."""

    status, code, title = 410, "node-gone", "The server is gone"


class InvalidInput(Problem):
    """A tensor, a parameter or the body is not valid; nothing was computed."""

    status, code, title = 422, "invalid-input", "Invalid input"


class TooLarge(Problem):
    """The call, or a tensor to be stored, has more bytes than a limit of the server allows."""

    status, code, title = 413, "too-large", "Too large"


class UnsupportedMedia(Problem):
    """The server cannot read the body's content type, or cannot answer in the type asked for."""

    status, code, title = 415, "unsupported-media", "Unsupported media type"


class Unauthorized(Problem):
    """The API key is missing or wrong."""

    status, code, title = 401, "unauthorized", "Unauthorized"


class Forbidden(Problem):
    """The role of the API key does not allow the request."""

    status, code, title = 403, "forbidden", "Forbidden"


class Busy(Problem):
    """A limit on requests, memory or stored tensors is reached; try again after `retry_after_s`."""

    status, code, title = 429, "busy", "Busy"


class KernelFailed(Problem):
    """The kernel raised an error or ran out of device memory."""

    status, code, title = 500, "kernel-failed", "Kernel failed"


class Unavailable(Problem):
    """The worker process of the device is starting or was lost. It is safe to repeat the call."""

    status, code, title = 503, "unavailable", "Unavailable"


class TimedOut(Problem):
    """The deadline passed. The message says at which stage: in the server's queue, in transfer."""

    status, code, title = 504, "timed-out", "Timed out"


class CallTimedOut(TimedOut, TransportError):
    """No answer came within the client's `timeout_s`.

    Args:
        server: the server's host and port.
        stage: what the client was doing when the time was over, such as "connecting" or
            "receiving the answer".
    """

    def __init__(self, server: str, stage: str) -> None:
        TimedOut.__init__(self, clean(f"{server} did not answer in time, while {stage}"))
        self.stage = stage

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled_timeout, (self.detail, self.stage)


def _unpickled_timeout(detail: str, stage: str) -> CallTimedOut:
    error = CallTimedOut("", stage)
    error.args, error.detail = (detail,), detail
    return error


def sizes(limit: int, got: int) -> tuple[str, str]:
    """Two numbers of bytes for a message: both in the same way, and never the same text."""
    short = _size(limit), _size(got)
    return short if short[0] != short[1] else (f"{limit:,} bytes", f"{got:,} bytes")


def _size(nbytes: int) -> str:
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} bytes"
