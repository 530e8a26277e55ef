"""The operator's modules with further implementations: what they provide, and which are broken.

A module is imported only in processes of its own. It is imported anew when a file of its package
has changed, so that an edit needs no restart of the server.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from warpcall.errors import InvalidInput
from warpcall_bench.runs.messages import ModuleAnswer, ModuleRequest
from warpcall_bench.runs.one_shot import OneShotError, run_one_shot
from warpcall_bench.runs.sources import SourceUnknown, package_sha256
from warpcall_bench.settings import BenchSettings

CHECK_MODULE = "warpcall_bench.programs.module_check"
ENTRY_POINTS = "warpcall_kernels.implementations"
MAX_ANSWER_BYTES = 1 << 20
KERNELS = "warpcall"  # that of the library's own kernels, which problems do not have
LIMIT = "copy"
SHIPPED = (KERNELS, "torch", "torch.compile", LIMIT)  # those of `measuring.shipped`

log = logging.getLogger("warpcall.jobs")


@dataclass(frozen=True, slots=True)
class OperatorImplementation:
    """An implementation of an operator's module.

    Attributes:
        doc: one line of description.
        ops: names of the ops that it computes; empty means all.
    """

    name: str
    doc: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperatorModule:
    """One module as it is on the disk.

    Attributes:
        sha256: hash of the files of its package; empty if they cannot be read.
        error: why it provides nothing, with the line that failed; empty if it can be imported.
    """

    name: str
    sha256: str
    implementations: tuple[OperatorImplementation, ...]
    error: str


class OperatorModules:
    """The modules of the setting `job_modules`, and those that installed packages declare."""

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings
        declared = [entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)]
        self._names = tuple(dict.fromkeys((*settings.modules, *declared)))
        self._known: dict[str, OperatorModule] = {}
        self._providers: dict[str, str] = {}  # by implementation, the last module that had it
        self._lock = asyncio.Lock()
        self._starting: asyncio.Task[Sequence[OperatorModule]] | None = None

    def start(self) -> None:
        """Import all modules now, so that the log has the errors before anybody needs a module."""
        self._starting = asyncio.create_task(self.current())

    async def stop(self) -> None:
        """End what `start` began."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait((self._starting,))

    async def current(self) -> Sequence[OperatorModule]:
        """What the modules provide. Those whose files have changed are imported, which is logged
        if it fails.

        Where two modules have implementations of the same name, the first one provides it and the
        other is broken.
        """
        async with self._lock:
            hashes = [await asyncio.to_thread(_hash_of, name) for name in self._names]
            changed = [
                (name, sha256, trouble)
                for name, (sha256, trouble) in zip(self._names, hashes, strict=True)
                if name not in self._known or self._known[name].sha256 != sha256
            ]
            described = await asyncio.gather(*(self._describe(*one) for one in changed))
            for module in described:
                self._known[module.name] = module
                if module.error:
                    log.error("the module %s cannot be used: %s", module.name, module.error)
        modules = _distinct(self._known[name] for name in self._names)
        for module in modules:
            self._providers |= {one.name: module.name for one in module.implementations}
        return modules

    async def sources_of(self, op: str, names: Iterable[str]) -> dict[str, str]:
        """The hash of the source of each implementation that a module provides for an op.

        Names of shipped and of uploaded implementations are left out.

        Raises:
            InvalidInput: there is no such implementation. The message lists those that there are,
                and the modules that are broken, which may have been meant.
        """
        wanted = list(filter(_may_be_provided, names))
        if not wanted:
            return {}
        modules = await self.current()
        found = {
            one.name: module.sha256
            for module in modules
            for one in module.implementations
            if not one.ops or op in one.ops
        }
        for name in wanted:
            if name not in found:
                raise _unknown(name, found, modules)
        return {name: found[name] for name in wanted}

    async def providing(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The modules that a job has to import, and which of the named implementations each has.

        A module that has lost an implementation since it was imported last is one of them: then the
        job finds out why.

        Raises:
            InvalidInput: as `sources_of`.
        """
        wanted = list(filter(_may_be_provided, names))
        if not wanted:
            return {}
        modules = await self.current()
        found: dict[str, list[str]] = {}
        for name in wanted:
            if name not in self._providers:
                raise _unknown(name, self._providers, modules)
            found.setdefault(self._providers[name], []).append(name)
        return found

    async def _describe(self, name: str, sha256: str, trouble: str) -> OperatorModule:
        if trouble:
            return OperatorModule(name, sha256, (), trouble)
        limit_s = self._settings.job_module_s
        request: ModuleRequest = {"module": name, "limit_s": limit_s}
        # The time in which the process starts and imports torch does not count as the module's.
        whole_s = self._settings.start_timeout_s + limit_s
        try:
            text = await run_one_shot(
                self._settings,
                CHECK_MODULE,
                json.dumps(request).encode(),
                whole_s,
                MAX_ANSWER_BYTES,
                trusted=True,
            )
        except OneShotError as error:
            return OperatorModule(name, sha256, (), f"when it is imported, {error}")
        answer: ModuleAnswer = json.loads(text)
        found = tuple(
            OperatorImplementation(one["name"], one["doc"], tuple(one["ops"]))
            for one in answer["implementations"]
        )
        return OperatorModule(name, sha256, found, answer["error"])


def _may_be_provided(name: str) -> bool:
    """Whether a name is neither that of a shipped implementation nor of an uploaded one."""
    return name not in SHIPPED and "/" not in name


def _unknown(name: str, known: Iterable[str], modules: Iterable[OperatorModule]) -> InvalidInput:
    broken = (
        f"; the module {module.name} cannot be used: {module.error}"
        for module in modules
        if module.error
    )
    names = ", ".join((*SHIPPED, *known))
    return InvalidInput(
        f"implementations must be of {names}, got {name!r:.60}" + "".join(broken),
        field="implementations",
    )


def _hash_of(module: str) -> tuple[str, str]:
    """The hash of a module's files and an empty text, or an empty text and why there is none."""
    try:
        return package_sha256(module), ""
    except (SourceUnknown, ImportError, OSError) as error:
        return "", str(error)


def _distinct(modules: Iterable[OperatorModule]) -> list[OperatorModule]:
    found: list[OperatorModule] = []
    owners: dict[str, str] = {}
    for module in modules:
        twice = next((one.name for one in module.implementations if one.name in owners), None)
        if twice is None:
            owners |= dict.fromkeys((one.name for one in module.implementations), module.name)
            found.append(module)
        else:
            error = f"there is an implementation {twice} already, in the module {owners[twice]}"
            found.append(OperatorModule(module.name, module.sha256, (), error))
    return found
