"""What `warpcall-server doctor` says of the sandbox for uploaded code."""

from __future__ import annotations

import asyncio

from warpcall_bench.runs import account, cgroups, seccomp
from warpcall_bench.runs.sandbox import PROBE_PROCESSES, Sandbox, memory_bytes
from warpcall_bench.settings import BenchSettings
from warpcall_service.findings import Finding
from warpcall_service.settings import Settings

ADVICE = "docs/settings.md, Uploaded code, says what forbids it and what to do"


def check_sandbox(settings: Settings) -> list[Finding]:
    """Findings about bubblewrap, the filter of system calls, control groups, and scratch runs."""
    assert isinstance(settings, BenchSettings)  # as `Extension.settings` says
    return [_bubblewrap(settings), _seccomp(settings), _cgroups(settings), _scratch(settings)]


def _bubblewrap(settings: BenchSettings) -> Finding:
    if settings.uploads != "sandboxed":
        text = f"not checked: WARPCALL_UPLOADS is {settings.uploads}"
        return Finding("bubblewrap", "ok", text)
    trouble = asyncio.run(Sandbox(settings).probe())
    if trouble:
        return Finding("bubblewrap", "failed", f"the sandbox cannot be used: {trouble}", ADVICE)
    return Finding("bubblewrap", "ok", "the sandbox starts, and what must not work in it does not")


def _seccomp(settings: BenchSettings) -> Finding:
    if settings.uploads != "sandboxed":
        return Finding("seccomp", "ok", f"not checked: WARPCALL_UPLOADS is {settings.uploads}")
    try:
        nbytes = len(seccomp.program())
        account.choose()
    except (seccomp.FilterError, account.NoAccount) as error:
        return Finding("seccomp", "failed", str(error), ADVICE)
    return Finding("seccomp", "ok", f"a filter of {nbytes} bytes, and an account for uploaded code")


def _cgroups(settings: BenchSettings) -> Finding:
    if settings.uploads == "off":
        return Finding("cgroups", "ok", "not checked: WARPCALL_UPLOADS is off")
    made = cgroups.create(PROBE_PROCESSES, memory_bytes(settings))
    if made is None:
        text = (
            "this account may create no control group, so the server watches memory and processes"
        )
        advice = "delegate a group to it, such as Delegate=yes in a unit of systemd"
        return Finding("cgroups", "warning", text, advice)
    made.remove()
    return Finding("cgroups", "ok", "the kernel limits memory and processes of each job")


def _scratch(settings: BenchSettings) -> Finding:
    limit_s = settings.scratch_max_s
    if not limit_s:
        return Finding("scratch", "ok", "off: WARPCALL_SCRATCH_MAX_S is 0")
    if settings.uploads != "sandboxed":
        text = f"they are refused, because WARPCALL_UPLOADS is {settings.uploads}"
        advice = "set WARPCALL_UPLOADS=sandboxed, or leave out WARPCALL_SCRATCH_MAX_S"
        return Finding("scratch", "failed", text, advice)
    text = (
        "users with the role scratch may run any command in the sandbox, with a device to itself for "
        f"at most {limit_s:g} s"
    )
    return Finding("scratch", "ok", text)
