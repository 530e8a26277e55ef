"""Uploads from the database as the types that the API answers with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from warpcall.implementations import (
    Implementation,
    ImplementationDetails,
    ImplementationVersion,
    UploadedFile,
    UploadedImplementation,
)
from warpcall.problems import ProblemDetails, ProblemInfo, ProblemVersion, UploadedProblem
from warpcall_bench.runs.messages import Language
from warpcall_bench.runs.operator_modules import OperatorModule
from warpcall_bench.uploads import files, odd_cases
from warpcall_bench.uploads.database import SHOWN_DIGITS
from warpcall_bench.uploads.job_uploads import verified_of
from warpcall_bench.uploads.tables import StoredProblem, Uploaded, UploadedVersion
from warpcall_service.formats.payloads import checked
from warpcall_service.store.times import moment

# The fields of an implementation that only uploaded ones have.
NOT_UPLOADED = dict.fromkeys(
    ("user", "version", "sha256", "function", "private", "nbytes", "created_at")
)


def implementation(row: UploadedVersion) -> Implementation:
    """A version in a list."""
    return checked(Implementation, _fields(row))


def uploaded(row: UploadedVersion, created: bool) -> UploadedImplementation:
    """The answer to an upload."""
    return checked(UploadedImplementation, {**_fields(row), "created": created})


def details(
    session: Session, row: UploadedVersion, versions: Sequence[UploadedVersion]
) -> ImplementationDetails:
    """A version with its source, the list of its other files, and all versions of its name."""
    return checked(
        ImplementationDetails,
        {
            **_fields(row),
            "source": row.source,
            "entry": row.entry,
            "files": [
                UploadedFile(path=one.path, sha256=one.sha256, nbytes=one.nbytes)
                for one in (files.listed(session, row.number) if row.entry else ())
            ],
            "launches": None if (own := verified_of(row)) is None else own["launches"],
            "versions": [checked(ImplementationVersion, _version(one)) for one in versions],
            "odd_cases": odd_cases.of_version(row),
        },
    )


def problem(row: StoredProblem) -> ProblemInfo:
    """A version of a problem in a list."""
    return checked(ProblemInfo, _problem_fields(row))


def uploaded_problem(row: StoredProblem, created: bool) -> UploadedProblem:
    """The answer to the upload of a problem."""
    return checked(UploadedProblem, {**_problem_fields(row), "created": created})


def problem_details(
    session: Session, row: StoredProblem, versions: Sequence[StoredProblem]
) -> ProblemDetails:
    """A version of a problem with its source and declaration, and all versions of its name."""
    return checked(
        ProblemDetails,
        {
            **_problem_fields(row),
            "source": row.source,
            "declaration": json.loads(row.declaration),
            "versions": [checked(ProblemVersion, _version(one)) for one in versions],
        },
    )


def shipped(name: str, doc: str) -> Implementation:
    """An implementation of the server's library."""
    fields = {"name": name, "kind": "shipped", "op": None, "doc": doc}
    return checked(Implementation, {**NOT_UPLOADED, **fields})


def provided(module: OperatorModule) -> list[Implementation]:
    """The implementations of a module of the operator, one for each op that it names."""
    return [
        checked(
            Implementation,
            {**NOT_UPLOADED, "name": one.name, "kind": "operator", "op": op, "doc": one.doc},
        )
        for one in module.implementations
        for op in one.ops or (None,)
    ]


def _fields(row: UploadedVersion) -> dict[str, Any]:
    verified = verified_of(row)
    return {
        **_common(row),
        "kind": "uploaded" if verified is None else "verified",
        "op": row.op,
        "function": row.function,
        "verified": verified is not None,
        "language": language_of(row),
    }


def language_of(row: UploadedVersion) -> Language:
    """The language of a version's source."""
    verified = verified_of(row)
    return "python" if verified is None else verified["language"]


def _problem_fields(row: StoredProblem) -> dict[str, Any]:
    return {**_common(row), **json.loads(row.outline)}


def _common(row: Uploaded) -> dict[str, Any]:
    return {
        **_version(row),
        "name": f"{row.user_name}/{row.name}",
        "doc": row.doc,
        "user": row.user_name,
        "private": row.private,
    }


def _version(row: Uploaded) -> dict[str, Any]:
    return {
        "version": row.sha256[:SHOWN_DIGITS],
        "sha256": row.sha256,
        "created_at": moment(row.created_ms),
        "nbytes": row.nbytes + (row.files_nbytes if isinstance(row, UploadedVersion) else 0),
    }
