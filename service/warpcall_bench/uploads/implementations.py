"""Implementations that are uploaded: their names, and what is known before they are checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, TooLarge
from warpcall_bench.runs.messages import Verified
from warpcall_bench.runs.trees import SourceTree
from warpcall_bench.uploads import files, job_uploads
from warpcall_bench.uploads.database import IMPLEMENTATIONS, REFERENCE, check_room
from warpcall_bench.uploads.models import UploadRequest
from warpcall_bench.uploads.new_versions import FUNCTION, NewImplementation, Quota, check_name
from warpcall_bench.uploads.trees import checked_tree
from warpcall_service.identity import Caller

MAX_LAUNCHES_BYTES = 16 << 10  # of the JSON that declares launches

Op = Mapping[str, Any]  # as the engine's catalog has it


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an upload before its source is checked.

    Attributes:
        op: the declaration of its op.
        private: whether its op is a private problem.
        tree: its files, for the check; None if it is stored.
    """

    op: Op
    private: bool
    tree: SourceTree | None

    @property
    def stored(self) -> bool:
        """Whether the same source is stored under the same name."""
        return self.tree is None


def named(request: UploadRequest, catalog: Sequence[Op], most_files: int) -> NewImplementation:
    """The upload that a request describes, with its function and its name.

    Raises:
        InvalidInput: there is no such op, and it cannot be a problem; or it has no function or no
            name that it could have by default; or as `checked_tree`.
        TooLarge: as `checked_tree`.
    """
    ops = [op["name"] for op in catalog]
    parts = REFERENCE.fullmatch(request.op)
    if request.op not in ops and (parts is None or parts["version"] is not None):
        raise InvalidInput(
            f"op must be one of {', '.join(ops)}, or a problem without its version, such as "
            f"ann/row-norm, got {request.op!r:.60}",
            field="op",
        )
    function = request.function or request.op.rpartition("/")[2].replace("-", "_")
    if not re.fullmatch(FUNCTION, function):
        raise InvalidInput(
            f"function must be given, because {function!r:.60} cannot be the name of a function",
            field="function",
        )
    name = request.name or function
    check_name(name, "the function")
    return NewImplementation(
        op=request.op,
        function=function,
        name=name,
        source=request.source,
        private=request.private,
        verified=_verified(request),
        tree=checked_tree(request.entry, request.files, most_files, request.language),
    )


def _verified(request: UploadRequest) -> Verified | None:
    """What makes an upload a verified one; None if it is none.

    Raises:
        InvalidInput: its members do not fit together, or its launches are too long.
    """
    if not request.verified:
        for name, given in (
            ("language", request.language == "cuda"),
            ("launches", request.launches),
        ):
            if given:
                raise InvalidInput(
                    f"{name}: CUDA C++ and declared launches need `verified`: true", field=name
                )
        return None
    if request.language == "cuda" and request.launches is None:
        raise InvalidInput(
            "launches: CUDA C++ needs a declaration of its launches; docs/verified-kernels.md "
            "describes it",
            field="launches",
        )
    nbytes = len(json.dumps(request.launches).encode())
    if nbytes > MAX_LAUNCHES_BYTES:
        raise TooLarge(
            f"launches must have at most {MAX_LAUNCHES_BYTES} bytes as JSON, got {nbytes}",
            field="launches",
        )
    return {"language": request.language, "launches": request.launches}


def known(
    session: Session,
    caller: Caller,
    new: NewImplementation,
    catalog: Sequence[Op],
    quota: Quota,
    most_bytes: int,
) -> Known:
    """What is known of an upload.

    Args:
        most_bytes: that its files may have together.

    Raises:
        InvalidInput: its op is a problem that does not exist or may not be read, or its name is that
            of an implementation of another op; or one of its files was not sent.
        TooLarge: it is not stored, and there is no room for it, or its files have too many bytes.
    """
    if "/" in new.op:
        problem = job_uploads.resolve_problem(session, caller, new.op)
        op, private = json.loads(problem.declaration), problem.private
    else:
        op, private = next(op for op in catalog if op["name"] == new.op), False
    if IMPLEMENTATIONS.find_stored(session, caller, new) is not None:
        return Known(op, private, None)
    tree = files.read(session, caller.name, new.source, new.tree, most_bytes)
    check_room(session, caller, new, quota)
    return Known(op, private, tree)
