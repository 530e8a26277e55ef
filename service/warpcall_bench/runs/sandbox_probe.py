"""Starts the sandbox once and checks it: python -m warpcall_bench.runs.sandbox_probe.

It sends what is wrong, in words for the operator, as JSON on its socket. It is a process of its own
because `sandboxed.start` needs one that has only one thread.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess  # nosec B404

from warpcall_bench.runs import sandboxed
from warpcall_bench.runs.messages import Launch
from warpcall_service.processes import child

CHECKS_MODULE = "warpcall_bench.runs.sandbox_checks"
LIMIT_S = 25.0
MAX_TEXT = 1000  # characters of what bubblewrap wrote

ALLOW_NAMESPACES = (
    "user namespaces are forbidden here: set the sysctl user.max_user_namespaces above 0, and "
    "kernel.unprivileged_userns_clone=1 where it exists; in a container, allow the calls clone, "
    "unshare, mount, umount2 and pivot_root in its seccomp profile"
)
CHANGE_APPARMOR = (
    "AppArmor forbids programs without a profile to use user namespaces, as on Ubuntu 24.04: load "
    "a profile for bwrap that has `userns,`; in a container, use a profile that allows `userns` "
    "and `mount`"
)
UNMASK_PROC = (
    "this container hides parts of /proc: in Docker set the security option "
    "systempaths=unconfined, in Podman unmask=ALL, in Kubernetes procMount: Unmasked"
)
# What bubblewrap writes where something is forbidden, and what the operator must change.
ADVICE = (
    ("No permissions to create", ALLOW_NAMESPACES),
    ("Creating new namespace failed", ALLOW_NAMESPACES),
    ("setting up uid map", CHANGE_APPARMOR),
    ("loopback", CHANGE_APPARMOR),
    ("mount proc", UNMASK_PROC),
    ("max_user_namespaces", UNMASK_PROC),
    ("nknown option", "this bubblewrap is too old: install 0.8 or newer"),
    ("not permitted", ALLOW_NAMESPACES),
)


def main() -> None:
    """Check, and send `{"trouble": text}`; the text is empty if the sandbox can be used."""
    args = child.start(launch=str, data_dir=str, answer_fd=int)
    with socket.socket(fileno=args.answer_fd) as sock:
        try:
            trouble = _check(json.loads(args.launch), args.data_dir)
        except (sandboxed.CannotStart, OSError) as error:
            trouble = str(error)
        sock.sendall(json.dumps({"trouble": trouble}).encode())


def _check(launch: Launch, data_dir: str) -> str:
    options = [f"--data-dir={data_dir}", f"--processes={launch['processes']}"]
    started = sandboxed.start(
        launch, CHECKS_MODULE, options, (), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = started.process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        started.process.kill()
        out, err = started.process.communicate()
        return f"the sandbox did not end within {LIMIT_S:g} s"
    finally:
        if started.cgroup:
            started.cgroup.remove()
    with contextlib.suppress(ValueError):
        if failed := json.loads(out)["failed"]:
            return f"the sandbox does not hold: {'; '.join(failed)}"
        return ""
    text = " ".join(err.decode(errors="replace").split())[-MAX_TEXT:]
    advice = next((advice for sign, advice in ADVICE if sign in text), "")
    wrote = f"the sandbox cannot start: {text or 'it wrote nothing'}"
    return f"{wrote}; {advice}" if advice else wrote


if __name__ == "__main__":
    main()
