"""The request of `explain`: what kernels need on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from warpcall import wire
from warpcall._core import Core
from warpcall._explain.gpus import architecture_of
from warpcall._jobs.client import given
from warpcall._jobs.parse import parse
from warpcall._jobs.source import Code, send_source, source_of
from warpcall.compile_reports import CompileReport, TextName
from warpcall.errors import InvalidInput


async def explain(
    core: Core,
    op: str,
    case: Mapping[str, Any],
    code: Code | None,
    function: str | None,
    implementation: str | None,
    gpu: str,
    texts: Collection[TextName],
) -> CompileReport:
    """As `Client.explain`."""
    if code is not None and implementation is not None:
        raise InvalidInput("code and implementation cannot be given together", field="code")
    members: dict[str, object] = {"function": function}
    if code is not None:
        members = await send_source(core, source_of(code, function=function, op=op))
    body = {
        "op": op,
        "case": dict(case),
        **members,
        "implementation": implementation,
        "gpu": architecture_of(gpu),
        "texts": list(texts),
    }
    payload = await core.request_json("POST", wire.COMPILE_REPORTS_PATH, given(body))
    return parse(CompileReport, payload, "a compile report")
