"""The request of `verify`: whether kernels can be timed as verified ones, and what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warpcall import wire
from warpcall._core import Core
from warpcall._explain.gpus import architecture_of
from warpcall._jobs.client import given
from warpcall._jobs.parse import parse
from warpcall._jobs.source import Code, send_source, source_of
from warpcall._jobs.verified import verified_members
from warpcall.implementations import Language
from warpcall.verifications import Verification


async def verify(
    core: Core,
    op: str,
    cases: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    code: Code,
    function: str | None,
    language: Language | None,
    launches: Mapping[str, Any] | None,
    gpu: str,
) -> Verification:
    """As `Client.verify`."""
    source = source_of(code, function=function, op=op)
    members = verified_members(source, False, language, launches)
    body = {
        "op": op,
        "cases": [dict(cases)] if isinstance(cases, Mapping) else [dict(one) for one in cases],
        **await send_source(core, source),
        "language": members["language"],
        "launches": members["launches"],
        "gpu": architecture_of(gpu),
    }
    payload = await core.request_json("POST", wire.VERIFICATIONS_PATH, given(body))
    return parse(Verification, payload, "a verification")
