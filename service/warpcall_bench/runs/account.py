"""The account of uploaded code, which is not the server's.

The kernel counts some resources by account, outside of all namespaces: watches of epoll, memory of
pipes, descriptors in messages. Code with the server's account could use them up, and the server
would fail. It would also own the server's files, and could lease them. So each sandbox has a user
namespace with two accounts: 0 is the server's, which only sets up the sandbox, and INSIDE is one of
the server's subordinate ids (subuid(5)), drawn at random, which the code gets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import secrets
import shutil
import subprocess  # nosec B404
from pathlib import Path
from typing import NamedTuple

INSIDE = 1000  # the account's id in the sandbox, and that of its group
# The kernel counts these for the server's account as well, which has made the namespace.
RLIMITS = {resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_SIGPENDING: 1024}
SYSCTLS = {"max_inotify_instances": 16, "max_inotify_watches": 4096, "max_user_namespaces": 0}
USER_SYSCTLS = Path("/proc/sys/user")  # of the namespace of the process that opens them
# Ids for the sandboxes of root without subordinate ones. No account has them by the conventions of
# Debian, Fedora and systemd; the second range is for containers that have only 65,536 ids.
OF_ROOT = ((0x70000000, 65536), (65520, 14))
SUBUID, SUBGID = Path("/etc/subuid"), Path("/etc/subgid")
MAP_S = 10.0  # within which newuidmap must have ended
PR_SET_DUMPABLE = 4
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
WHAT_TO_DO = (
    "uploaded code needs an account of its own: install newuidmap and newgidmap (the package uidmap "
    "or shadow-utils), and give the server's account subordinate ids (usermod --add-subuids "
    "100000-165535 --add-subgids 100000-165535 ACCOUNT)"
)
NO_NEW_RIGHTS = (
    "uploaded code needs an account of its own, which newuidmap gives it, and programs that this "
    "server starts may not gain rights (no_new_privs): set NoNewPrivileges=no in a systemd unit, leave "
    "out the security option no-new-privileges in Docker or Podman, set allowPrivilegeEscalation: true "
    "in Kubernetes"
)


class NoAccount(Exception):
    """There is no account for uploaded code. The message says what to do."""


class Ids(NamedTuple):
    """Ids of the account and its group outside of the sandbox."""

    user: int
    group: int


def choose() -> Ids:
    """Ids for one sandbox.

    Raises:
        NoAccount: there are none, or no program that may give them away.
    """
    if os.geteuid() != 0:
        if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
            raise NoAccount(WHAT_TO_DO)
        if "\nNoNewPrivs:\t1\n" in Path("/proc/self/status").read_text():
            raise NoAccount(NO_NEW_RIGHTS)
    return Ids(_drawn(SUBUID, "uid_map"), _drawn(SUBGID, "gid_map"))


def limit() -> None:
    """Limit what this process's next user namespace can use up of its account's.

    Capabilities that Podman gives the server for newuidmap are dropped: bubblewrap takes none.
    """
    ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for number, value in RLIMITS.items():
        lower(number, value)


def lower(number: int, value: int) -> None:
    """Lower one of this process's limits, which it cannot raise again, to at most `value`."""
    highest = resource.getrlimit(number)[1]
    least = value if highest == resource.RLIM_INFINITY else min(value, highest)
    resource.setrlimit(number, (least, least))


def give(ids: Ids, pid: int) -> None:
    """Let process `pid` be 0 in its new user namespace, and INSIDE `ids`.

    Raises:
        NoAccount: that is not allowed.
    """
    files = (
        ("uid_map", "newuidmap", os.geteuid(), ids.user),
        ("gid_map", "newgidmap", os.getegid(), ids.group),
    )
    for file, program, own, given in files:
        numbers = [0, own, 1, INSIDE, given, 1]
        try:
            if os.geteuid() == 0:
                text = "{} {} {}\n{} {} {}\n".format(*numbers)
                Path(f"/proc/{pid}/{file}").write_text(text)
            else:
                command = [shutil.which(program) or program, str(pid), *map(str, numbers)]
                subprocess.run(  # nosec B603
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=True,
                    timeout=MAP_S,
                )
        except subprocess.CalledProcessError as error:
            why = error.stderr.decode(errors="replace").strip()
            raise NoAccount(f"{why}; {WHAT_TO_DO}") from None
        except (OSError, subprocess.SubprocessError) as error:
            raise NoAccount(f"{error}; {WHAT_TO_DO}") from None


def leave() -> None:
    """Change from the server's account to that of uploaded code, for good. Call it in the sandbox.

    Raises:
        OSError: this process may not.
    """
    for name, value in SYSCTLS.items():
        (USER_SYSCTLS / name).write_text(f"{value}\n")
    os.setgroups([])
    os.setresgid(INSIDE, INSIDE, INSIDE)
    os.setresuid(INSIDE, INSIDE, INSIDE)  # which also drops all capabilities
    # The kernel gives root the files in /proc of a process that has changed its account. CUDA does
    # not start in a process that cannot write to its own.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def _drawn(file: Path, own_map: str) -> int:
    """One of the account's subordinate ids in a file, or one for root.

    Raises:
        NoAccount: it has none.
    """
    ranges: list[tuple[int, int]] = [*_subordinate(file), *(OF_ROOT if os.geteuid() == 0 else ())]
    here = [line.split() for line in Path("/proc/self", own_map).read_text().splitlines()]
    mapped = [range(int(first), int(first) + int(count)) for first, _, count in here]
    for first, count in ranges:
        if count > 0 and any(first in ids and first + count - 1 in ids for ids in mapped):
            return first + secrets.randbelow(count)
    raise NoAccount(WHAT_TO_DO)


def _subordinate(file: Path) -> list[tuple[int, int]]:
    """The ranges of this account in subuid(5) or subgid(5): the first id, and their number."""
    names, found = {str(os.geteuid())}, list[tuple[int, int]]()
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(os.geteuid()).pw_name)
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name in names:
                first, _, count = numbers.partition(":")
                found.append((int(first), int(count)))
    return found
