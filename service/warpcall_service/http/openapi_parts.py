"""Parts of the OpenAPI description that several groups of routes share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warpcall import errors, wire

Schema = dict[str, Any]

BINARY: Schema = {"type": "string", "format": "binary"}
CALL_PROBLEMS = (
    errors.NotFound,
    errors.InvalidInput,
    errors.TooLarge,
    errors.UnsupportedMedia,
    errors.Busy,
    errors.KernelFailed,
    errors.Unavailable,
    errors.TimedOut,
)

TIMEOUT: Schema = {
    "name": wire.TIMEOUT_HEADER,
    "in": "header",
    "required": False,
    "description": "seconds until the call is given up with `timed-out`",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
REQUEST_ID: Schema = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "names the request in the answer and in the server's log; generated if absent",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
}
TENSORS: Schema = {
    "name": wire.TENSORS_HEADER,
    "in": "header",
    "required": False,
    "description": "inputs that are stored tensors, such as `x=photo, mask=m`",
    "schema": {"type": "string"},
}
KEEP: Schema = {
    "name": wire.STORE_HEADER,
    "in": "header",
    "required": False,
    "description": "outputs to keep on the device and under which ids, such as `out=y`; `*=y` keeps "
    "all, as `y.out` and so on",
    "schema": {"type": "string"},
}
TTL: Schema = {
    "name": wire.TTL_HEADER,
    "in": "header",
    "required": False,
    "description": "seconds after its last use until what is kept goes",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
DEVICE: Schema = {
    "name": wire.DEVICE_HEADER,
    "in": "header",
    "required": False,
    "description": "where to run, such as `cuda:0`",
    "schema": {"type": "string"},
}
CALL_HEADERS = (TENSORS, KEEP, TTL, DEVICE, TIMEOUT, REQUEST_ID)
ANSWER_HEADERS: Schema = {
    "X-Request-Id": {"schema": {"type": "string"}, "description": "names this request"},
    "X-Warpcall-Device": {"schema": {"type": "string"}, "description": "what ran it"},
    "Server-Timing": {
        "schema": {"type": "string"},
        "description": "milliseconds: queue, h2d (to the device), kernel, d2h (from the device)",
    },
}


def problem_responses(kinds: Iterable[type[errors.Problem]]) -> dict[int | str, Schema]:
    """The answers that such problems give, as an operation's `responses`."""
    content = {errors.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        str(kind.status): {"description": f"{kind.title} ({kind.code})", "content": content}
        for kind in kinds
    }
