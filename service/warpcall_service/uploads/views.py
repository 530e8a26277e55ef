"""Uploaded implementations from the database as the types that the API answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpcall.implementations import (
    Implementation,
    ImplementationDetails,
    ImplementationVersion,
    UploadedImplementation,
)
from warpcall_service.formats.payloads import checked
from warpcall_service.store.tables import UploadedVersion
from warpcall_service.store.times import moment
from warpcall_service.uploads.database import SHOWN_DIGITS


def implementation(row: UploadedVersion) -> Implementation:
    """A version in a list."""
    return checked(Implementation, _fields(row))


def uploaded(row: UploadedVersion, created: bool) -> UploadedImplementation:
    """The answer to an upload."""
    return checked(UploadedImplementation, {**_fields(row), "created": created})


def details(row: UploadedVersion, versions: Sequence[UploadedVersion]) -> ImplementationDetails:
    """A version with its source, and all versions of its name."""
    return checked(
        ImplementationDetails,
        {
            **_fields(row),
            "source": row.source,
            "versions": [
                checked(
                    ImplementationVersion,
                    {
                        "version": one.sha256[:SHOWN_DIGITS],
                        "sha256": one.sha256,
                        "created_at": moment(one.created_ms),
                        "nbytes": one.nbytes,
                    },
                )
                for one in versions
            ],
        },
    )


def installed(described: dict[str, Any]) -> Implementation:
    """An implementation of the server's library, or of the operator, as a worker describes it."""
    absent = dict.fromkeys(
        ("user", "version", "sha256", "function", "private", "nbytes", "created_at")
    )
    return checked(Implementation, {**absent, **described})


def _fields(row: UploadedVersion) -> dict[str, Any]:
    return {
        "name": f"{row.user_name}/{row.name}",
        "kind": "uploaded",
        "op": row.op,
        "doc": row.doc,
        "user": row.user_name,
        "version": row.sha256[:SHOWN_DIGITS],
        "sha256": row.sha256,
        "function": row.function,
        "private": row.private,
        "nbytes": row.nbytes,
        "created_at": moment(row.created_ms),
    }
