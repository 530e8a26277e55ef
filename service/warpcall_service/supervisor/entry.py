"""The program of one server below a supervisor."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from warpcall_service import logs
from warpcall_service.extension import load_settings
from warpcall_service.http.listen import ServerError
from warpcall_service.nodes.server_identity import (
    IdentityTaken,
    IdentityUnavailable,
    ServerIdentity,
    ServerPlace,
)
from warpcall_service.server import serve
from warpcall_service.settings import Settings, SettingsError

PR_SET_PDEATHSIG = 1
POLL_S = 0.1  # between two looks whether the predecessor has ended
REFUSED = 2  # exit status: the server cannot start with these settings


def main() -> None:
    """Serve as the supervisor says, until SIGTERM, or until the supervisor has ended."""
    parser = argparse.ArgumentParser()
    for name, kind in (("parent", int), ("name", str), ("ready-fd", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--public-port", type=int)
    parser.add_argument("--overrides", type=json.loads, required=True)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--short-log", action="store_true")
    args = parser.parse_args()
    # SIGTERM, not SIGKILL: requests in progress end, and jobs go back to the queue.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != args.parent:
        sys.exit(0)  # the supervisor ended before prctl was called
    os.set_inheritable(args.ready_fd, False)
    logs.set_up(quiet=args.quiet, json_lines=not args.short_log, server=args.name)
    place = ServerPlace(args.name, args.public_port, args.ready_fd)
    try:
        settings = load_settings(**_settings(args.overrides))
        _await_predecessor(settings, args.name)
        serve(settings, place)
    except (SettingsError, ServerError) as error:
        logs.write(f"warpcall-server: {error}")
        sys.exit(REFUSED)


def _await_predecessor(settings: Settings, name: str) -> None:
    """Wait until a server that has this server's data folder has ended.

    If a supervisor is killed, its servers end in good order. A server of the next supervisor that
    did not wait for that would get another id, and could not take its own jobs back.
    """
    identity = ServerIdentity.of(settings, name)
    deadline = time.monotonic() + settings.stop_s
    with contextlib.suppress(IdentityUnavailable):
        while time.monotonic() < deadline:
            try:
                identity.acquire()
                break
            except IdentityTaken:
                time.sleep(POLL_S)
    identity.release()


def _settings(overrides: dict[str, Any]) -> dict[str, Any]:
    uds = overrides.pop("uds")
    return {**overrides, "uds": None if uds is None else Path(uds)}


if __name__ == "__main__":
    main()
