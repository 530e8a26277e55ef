"""What forms can be about: the ops of the library, and the problems of users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warpcall.errors import NotFound
from warpcall.problems import ProblemInfo
from warpcall_bench.jobs import models
from warpcall_bench.uploads.database import REFERENCE, UploadFilter
from warpcall_bench.uploads.service import PROBLEM, UploadService
from warpcall_service.extension import Engine
from warpcall_service.identity import Caller
from warpcall_service.text import brief

LISTED = 100  # problems in a form; others are reached from their page

Declared = Mapping[str, Any]  # an op, as the engine's catalog has it


class Ops:
    """Finds ops by name."""

    def __init__(self, engine: Engine, uploads: UploadService) -> None:
        self._engine = engine
        self._uploads = uploads

    @property
    def shipped(self) -> list[Declared]:
        """All ops of the library."""
        return [*self._engine.catalog]

    def find_shipped(self, name: str) -> Declared:
        """The declaration of an op of the library.

        Raises:
            NotFound: there is no such op.
        """
        for op in self._engine.catalog:
            if op["name"] == name:
                return op
        known = ", ".join(op["name"] for op in self._engine.catalog)
        raise NotFound(f"there is no op {brief(name)}, there are {known}", field="op")

    async def find(self, caller: Caller, name: str) -> Declared:
        """The declaration of an op, or of a problem such as "ann/row-norm" or one version of it.

        Its name is as it was given, with the version if there is one.

        Raises:
            NotFound: there is none, or it is private to another user.
        """
        parts = REFERENCE.fullmatch(name)
        if parts is None:
            return self.find_shipped(name)
        named = parts.group("user", "name", "version")
        found = await self._uploads.find(PROBLEM, caller, *named)
        sizes = {size["name"] for size in found.declaration["sizes"]}
        # A size may also be a parameter of the functions. It is chosen as a size.
        params = [one for one in found.declaration["params"] if one["name"] not in sizes]
        return {**found.declaration, "params": params, "name": name}

    async def problems(self, caller: Caller) -> Sequence[ProblemInfo]:
        """The problems that the caller may read, the one uploaded last first."""
        return (await self._uploads.list_problems(caller, UploadFilter(limit=LISTED))).problems


def is_problem(op: Declared) -> bool:
    """Whether a declaration is that of a problem: its inputs follow from sizes, not from shapes."""
    return models.is_problem(op["name"])
