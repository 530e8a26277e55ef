"""Reads the parts of answers that are not tensors: problems, Retry-After and Server-Timing."""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime
from typing import Any

from warpcall._text import clean
from warpcall._transport.base import Reply
from warpcall.errors import Problem


def problem_of(reply: Reply, sender: str = "the server") -> Problem:
    """The error of an answer.

    Args:
        sender: who answered, if the body does not look like the server's own.
    """
    retry_after_s = parse_retry_after(reply.headers.get("retry-after"))
    members: Any = None
    if "json" in reply.headers.get("content-type", ""):
        try:
            members = json.loads(reply.body.tobytes())
        except (ValueError, RecursionError):
            members = None
    if isinstance(members, dict) and ("detail" in members or "title" in members):
        texts = {name: clean(text) for name, text in members.items() if isinstance(text, str)}
        problem = Problem.from_json(reply.status, texts, retry_after_s)
    else:
        text = first_text(reply)
        detail = f"{sender} answered {reply.status}" + (f": {text}" if text else "")
        # A proxy that cannot reach its server answers 502.
        status = 503 if reply.status == 502 else reply.status
        problem = Problem.from_json(status, {"detail": detail}, retry_after_s)
    problem.request_id = problem.request_id or reply.headers.get("x-request-id")
    return problem


def parse_retry_after(text: str | None) -> float | None:
    """Seconds from a Retry-After header, a number or a date; None if it is neither."""
    if text is None:
        return None
    try:
        return max(0.0, float(text)) if text.strip()[:1].isdigit() else _until(text)
    except (ValueError, OverflowError):
        return None


def parse_server_timing(text: str) -> dict[str, float]:
    """Milliseconds by stage from a Server-Timing header such as "queue;dur=0.1, kernel;dur=2"."""
    try:  # as our server writes it
        return {name: float(ms) for name, ms in [part.split(";dur=") for part in text.split(", ")]}
    except ValueError:
        pass
    stages = {}
    for entry in text.split(","):
        name, *attributes = (part.strip() for part in entry.split(";"))
        for attribute in attributes:
            key, _, value = attribute.partition("=")
            try:
                if key.strip() == "dur":
                    stages[name] = float(value.strip('" '))
            except ValueError:
                continue
    return stages


def _until(date: str) -> float:
    return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())


def first_text(reply: Reply) -> str:
    """The beginning of a body that should have been JSON, on one line."""
    text = " ".join(reply.body[:400].tobytes().decode("utf-8", "replace").split())
    if text.startswith("<"):  # the page of a proxy; the status is enough
        return ""
    return clean(text, 120)
