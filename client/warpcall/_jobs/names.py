"""Names of what users upload: "user/name" or "user/name@version"."""

from __future__ import annotations

import re
from urllib.parse import quote

from warpcall.errors import InvalidInput

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}")  # without its user
USER = re.compile(r"[a-z0-9][a-z0-9._@-]*")
VERSION = re.compile(r"[0-9a-f]{8,64}")
PROBLEM = re.compile(rf"{USER.pattern}/{NAME.pattern}(@{VERSION.pattern})?")


def path_of(root: str, full_name: str, version: str | None, example: str) -> str:
    """The URL path of an upload.

    Args:
        root: path of all uploads of this kind, such as "/v1/implementations".
        full_name: "user/name" or "user/name@version".
        version: the version, if the name does not have it.
        example: a name for the message of an error, such as "ann/my_permute".

    Raises:
        InvalidInput: the name or the version cannot be one.
    """
    user, _, rest = full_name.partition("/")
    name, at, named_version = rest.partition("@")
    if at and version is not None:
        raise InvalidInput(
            f"version must be given once, got {full_name!r:.120} and {version!r:.80}",
            field="version",
        )
    version = named_version if at else version
    if not USER.fullmatch(user) or not NAME.fullmatch(name):
        raise InvalidInput(
            f"name must be like {example} or {example}@3f2a91c0, got {full_name!r:.120}",
            field="name",
        )
    if version is not None and not VERSION.fullmatch(version):
        raise InvalidInput(
            f"version must be 8 to 64 of the digits 0-9 and a-f, got {version!r:.80}",
            field="version",
        )
    path = f"{root}/{quote(user, safe='')}/{name}"
    return path if version is None else f"{path}?version={version}"


def is_problem(op: str) -> bool:
    """Whether the name of an op is that of a problem: "ann/row-norm" or "ann/row-norm@3f2a91c0"."""
    return PROBLEM.fullmatch(op) is not None


def without_version(op: str) -> str:
    """The name of an op, such as "ann/row-norm" for "ann/row-norm@3f2a91c0"."""
    user, slash, name = op.partition("/")  # the user's own name may have an @
    return f"{user}{slash}{name.partition('@')[0]}"
