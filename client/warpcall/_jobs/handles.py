"""What the handles of jobs, groups and artefacts have in common."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from warpcall._config import UNIX, split_urls
from warpcall._core import Core


def take_fields(handle: Any, kind: type[Any], info: Any) -> None:
    """Give a handle the fields of `kind` with the values that a server's answer has.

    Users cannot assign to them, because `kind` is frozen.
    """
    handle.__dict__.update({field.name: getattr(info, field.name) for field in fields(kind)})


def page_of(core: Core, path: str) -> str | None:
    """Address of a page of the server; None for a server on a Unix socket."""
    server = split_urls(core.config.url)[0]
    return None if server.startswith(UNIX) else f"{server}{path}"
