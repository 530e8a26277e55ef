"""The profile: a file that holds a server's address and key for later commands."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from warpcall.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Profile:
    """The contents of the profile; each may be missing."""

    url: str | None = None
    api_key: str | None = None


def profile_path() -> Path:
    """The path of the profile, whether it exists or not."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "warpcall" / "profile.toml"


def read_profile() -> Profile:
    """Read the profile; it is empty if there is no file.

    Raises:
        InvalidInput: the file cannot be read, has other contents, or other users may read its key.
    """
    try:
        path = profile_path()
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (FileNotFoundError, NotADirectoryError, PermissionError, RuntimeError):
        return Profile()  # RuntimeError: the user has no home, as in a container
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}") from None
    import tomllib

    try:
        found = tomllib.loads(text.decode())
    except ValueError as error:
        raise _wrong(path, f"must be TOML: {error}") from None
    for name, value in found.items():
        if name not in ("url", "api_key") or not isinstance(value, str):
            raise _wrong(path, f'may have url = "..." and api_key = "...", got {name!r:.60}')
    if "api_key" in found and os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _wrong(
            path, f"holds a key and others may use it (mode {stat.S_IMODE(mode):o}): chmod 600"
        )
    return Profile(found.get("url"), found.get("api_key"))


def write_profile(profile: Profile) -> Path:
    """Replace the profile, and return its path. At no time can other users read the file."""
    path = profile_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [
        f"{name} = {json.dumps(value)}\n"
        for name, value in (("url", profile.url), ("api_key", profile.api_key))
        if value is not None
    ]
    # mkstemp gives the file mode 600.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".profile-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.writelines(lines)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
    return path


def delete_profile() -> bool:
    """Delete the profile. Return whether there was one."""
    try:
        profile_path().unlink()
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return False
    return True


def _wrong(path: Path, what: str) -> InvalidInput:
    return InvalidInput(f"the profile {path} {what}", field="profile")
