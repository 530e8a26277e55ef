"""Problems that are uploaded: found if they are stored, and checked otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.database import PROBLEMS, check_room
from warpcall_bench.uploads.models import ProblemUpload
from warpcall_bench.uploads.new_versions import NewProblem, Quota, check_name
from warpcall_service.identity import Caller

UNNAMED = "problem"  # its name in the check, as long as nobody knows that of its reference


def known(
    session: Session, caller: Caller, request: ProblemUpload, quota: Quota
) -> NewProblem | None:
    """The upload, if it need not be checked because it is stored.

    Raises:
        TooLarge: it is not, and there is no room for it.
    """
    new = NewProblem(name=request.name or UNNAMED, source=request.source, private=request.private)
    if request.name is not None:
        if PROBLEMS.find_stored(session, caller, new) is not None:
            return new
    else:
        for row in PROBLEMS.of_source(session, caller, new.sha256):
            if row.name == _default_name(row.function):
                return replace(new, name=row.name)
    check_room(session, caller, new, quota)
    return None


async def check(
    checks: Checks, caller: Caller, request: ProblemUpload
) -> tuple[NewProblem, dict[str, str]]:
    """The upload, and the columns that follow from the check of its source."""
    given = f"{caller.name}/{request.name or UNNAMED}"
    answer = await checks.problem(caller.name, given, request.source)
    declared = answer.declaration
    assert declared is not None
    if request.name is None and not answer.function:
        raise InvalidInput(
            "name must be given, because the reference has no name that it could have by default",
            field="name",
        )
    name = request.name or _default_name(answer.function)
    check_name(name, "the reference")
    new = NewProblem(name=name, source=request.source, private=request.private)
    declaration = {
        **declared.to_json(),
        "name": f"{caller.name}/{name}",
        "source_sha256": new.sha256,
    }
    names = {
        "inputs": [one.name for one in declared.inputs],
        "params": [one.name for one in declared.params],
        "sizes": [one.name for one in declared.sizes],
    }
    return new, {
        "doc": answer.doc or "",
        "function": answer.function,
        "outline": json.dumps(names),
        "declaration": json.dumps(declaration),
    }


def _default_name(function: str) -> str:
    return function.replace("_", "-")
