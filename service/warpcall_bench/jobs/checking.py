"""Checks the request of a job before it is queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall_bench.artefacts import ncu, profiles
from warpcall_bench.jobs.database import JobDatabase
from warpcall_bench.jobs.models import (
    CHECK,
    JobRequest,
    ScratchRequest,
    is_problem,
    without_version,
)
from warpcall_bench.jobs.placement import Device, all_devices
from warpcall_bench.runs.messages import Checked
from warpcall_bench.runs.operator_modules import KERNELS, LIMIT, SHIPPED, OperatorModules
from warpcall_bench.runs.sandbox import Sandbox, memory_bytes
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import job_uploads
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.problem_cases import NamedProblem, ProblemCases
from warpcall_service.extension import Engine, Nodes
from warpcall_service.identity import Caller
from warpcall_service.lanes.messages import frame
from warpcall_service.text import brief

NO_GPU = (
    "this server has no GPU, so a job compiles no kernels; `warpcall explain` and "
    "POST /v1/compile-reports need none"
)
MAX_SHOWN = 10  # devices that a message names


class JobChecks:
    """Checks requests with the lanes of this server and, for uploaded code, with the sandbox."""

    def __init__(
        self,
        settings: BenchSettings,
        engine: Engine,
        database: JobDatabase,
        modules: OperatorModules,
        sandbox: Sandbox,
        checks: Checks,
        nodes: Nodes,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._database = database
        self._modules = modules
        self._sandbox = sandbox
        self._problem_cases = ProblemCases(checks)
        self._nodes = nodes

    async def check(self, caller: Caller, request: JobRequest) -> Checked:
        """Check a request: lanes know the ops and the implementations, a problem makes its cases.

        Raises:
            InvalidInput: the request cannot be measured, takes longer than a job may take, or asks
                for a device that no server has.
            Forbidden, Unavailable: uploaded code cannot run, and the request needs some.
        """
        devices = self.devices_for(request)
        return _placed(await self._check(caller, request, devices), request, devices)

    async def check_each(
        self, caller: Caller, request: JobRequest, parts: Sequence[JobRequest]
    ) -> list[Checked]:
        """Check a request once, for jobs that differ only in the GPU that they ask for.

        A model that no server has is no error: its job waits for one.

        Raises:
            InvalidInput, Forbidden, Unavailable: as `check`. No server has any of the models.
        """
        known = all_devices(self._nodes)
        fitting = [[one for one in known if one.fits(part.gpu, part.node)] for part in parts]
        if not any(fitting):
            models = " or ".join(brief(part.gpu) for part in parts)
            node = "" if request.node is None else f" on {brief(request.node)}"
            raise InvalidInput(
                f"gpus: no server here has a device of the model {models}{node}; there are "
                f"{_named(known)}",
                field="gpus",
            )
        checked = await self._check(caller, request, [one for found in fitting for one in found])
        return [_placed(checked, *one) for one in zip(parts, fitting, strict=True)]

    async def _check(
        self, caller: Caller, request: JobRequest, devices: Sequence[Device]
    ) -> Checked:
        op, names = without_version(request.op), request.implementations
        problem = await self._problem_of(caller, request)
        given = request.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        cases = {name: given[name] for name in ("cases", "sweep") if given.get(name) is not None}
        cases["max_cases"] = self._settings.job_max_cases
        cases["timed"] = request.precision != CHECK
        description = {
            "op": None,
            "precision": request.precision,
            "host_bytes": memory_bytes(self._settings),
            **({"op": op, **cases} if problem is None else {}),
        }
        answer: Mapping[str, Any] = await self._engine.request_plan(
            frame({"job": description}), "this job"
        )
        checked: Checked = answer  # type: ignore[assignment]  # as programs/job_check.py answers
        versions = await self._versions_of(caller, op, request)
        source = checked["kernels_sha256"]
        if problem is not None:
            source = checked["problem_sha256"] = problem.sha256  # its reference is timed
            room = {"device": "this server", "memory_bytes": checked["memory_bytes"]}
            room["small"] = all(lane.name == "cpu" for lane in self._engine.all_lanes)
            checked["cases"] = await self._problem_cases.make(
                caller.name, problem, {**cases, **room}
            )
        if request.profile is not None:
            profiles.check("profile", len(checked["cases"]), len(names))
            if request.profile != "torch":
                self._check_profiler(request, devices)
        if request.sanitize:
            profiles.check("sanitize", len(checked["cases"]), len(request.uploads))
        checked["sources"] = {
            **dict.fromkeys({*names} & {*SHIPPED} - {LIMIT}, source),
            **await self._modules.sources_of(op, names),
            **versions,
        }
        nominal_s = request.nominal_s(len(checked["cases"]), checked["implementation_s"])
        limit_s = self._settings.job_wall_s
        if nominal_s > limit_s:
            raise InvalidInput(
                f"a job may run for {limit_s:g} s, these {len(checked['cases'])} cases with "
                f"{len(request.implementations)} implementations at {request.precision} take some "
                f"{nominal_s:.0f} s",
                field="sweep" if request.sweep is not None else "cases",
            )
        return checked

    def devices_for(self, request: JobRequest | ScratchRequest) -> list[Device]:
        """The devices that a job may run on.

        Raises:
            InvalidInput: there is none, on any server that shares the queue.
        """
        known = all_devices(self._nodes)
        found = [device for device in known if device.fits(request.gpu, request.node)]
        if found or (request.gpu is None and request.node is None):
            return found
        field = "node" if request.gpu is None else "gpu"
        if request.node is not None and not any(d.fits(None, request.node) for d in known):
            field = "node"
        raise InvalidInput(
            f"{field}: no server here has a device {_asked(request)}; there are {_named(known)}",
            field=field,
        )

    def _check_profiler(self, request: JobRequest, devices: Sequence[Device]) -> None:
        """Check that there is what profiles need, where only this server can run the job.

        Raises:
            InvalidInput: something is missing.
        """
        if any(device.node != self._nodes.id for device in devices):
            return  # another server may have what this one lacks; if not, the artefact says so
        lanes = [lane.name for lane in self._engine.all_lanes]
        if request.profile == "compile":
            if all(name == "cpu" for name in lanes):
                raise InvalidInput(f"profile: {NO_GPU}", field="profile")
            return
        foreign = is_problem(request.op) or bool(request.uploads)
        sandboxed = foreign and self._settings.uploads == "sandboxed"
        if why := ncu.trouble(self._settings, lanes, sandboxed=sandboxed):
            raise InvalidInput(f"profile: {why}", field="profile")

    async def _problem_of(self, caller: Caller, request: JobRequest) -> NamedProblem | None:
        """The problem that a request names; None if it names an op of the library.

        Raises:
            InvalidInput: there is no such problem, or an implementation is for ops of the library.
            Forbidden, Unavailable: uploaded code cannot run.
        """
        if not is_problem(request.op):
            return None
        self._sandbox.require()
        if KERNELS in request.implementations:
            others = ", ".join(name for name in SHIPPED if name != KERNELS)
            raise InvalidInput(
                f"implementations: {KERNELS} has no kernels for {request.op}, which is a problem; "
                f"of the library there are {others}",
                field="implementations",
            )
        return await self._database.read(_named_problem, caller, request.op)

    async def _versions_of(self, caller: Caller, op: str, request: JobRequest) -> dict[str, str]:
        """The version of each uploaded implementation, by its name.

        Raises:
            InvalidInput: there is no such implementation, or it cannot be profiled.
            Forbidden, Unavailable: uploaded code cannot run.
        """
        if not any("/" in name for name in request.implementations):
            return {}
        self._sandbox.require()

        def read(session: Session) -> dict[str, str]:
            found = job_uploads.resolve(session, caller, op, request.implementations)
            verified = [name for name, row in found.items() if row.verified is not None]
            for field, asked, what in (
                ("profile", request.profile is not None, "profiled"),
                ("sanitize", request.sanitize, "run under compute-sanitizer"),
            ):
                if verified and asked:
                    raise InvalidInput(
                        f"{field}: {verified[0]} is a verified kernel, which cannot be {what}; leave "
                        "it out, or upload the source without `verified`",
                        field=field,
                    )
            return {name: row.sha256 for name, row in found.items()}

        return await self._database.read(read)


def _placed(checked: Checked, request: JobRequest, devices: Sequence[Device]) -> Checked:
    """What was checked of a request, with where it may run: `devices`."""
    placed: Checked = {**checked}
    if request.gpu is not None or request.node is not None:
        known = sorted({one.environment for one in devices if one.environment})
        placed["environment"] = known[0] if known else ""
    if request.node is not None:
        placed["nodes"] = sorted({one.node for one in devices})
    return placed


def _named(devices: Sequence[Device]) -> str:
    """Some devices, in words."""
    shown = sorted({f"{one.model or 'an unknown device'} on {one.host}" for one in devices})
    more = f" and {len(shown) - MAX_SHOWN} others" if len(shown) > MAX_SHOWN else ""
    return f"{', '.join(shown[:MAX_SHOWN])}{more}"


def _asked(request: JobRequest | ScratchRequest) -> str:
    """The device that a request asks for, in words."""
    model = "" if request.gpu is None else f"of the model {brief(request.gpu)}"
    node = "" if request.node is None else f"on {brief(request.node)}"
    return f"{model} {node}".strip()


def _named_problem(session: Session, caller: Caller, reference: str) -> NamedProblem:
    return NamedProblem.of(job_uploads.resolve_problem(session, caller, reference))
