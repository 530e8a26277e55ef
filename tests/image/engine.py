"""Containers for the tests of the image, by Docker or by podman."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300.0  # of any one command here
# As an operator who trusts nothing would run it. No network: the only one that it sees is its own
# loopback.
HARDENED = (
    *("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none"),
    "--tmpfs=/tmp",
)
# Tests have no XDG_CONFIG_HOME, which podman takes amiss. The rest lets it run inside a container,
# too: no systemd, no right to raise limits.
PODMAN = ("env", "--unset=XDG_CONFIG_HOME", "podman", "--runtime=runc", "--cgroup-manager=cgroupfs")
# What the sandbox of uploaded code needs: an account, namespaces, mounts in them, and a /proc of its own.
ACCOUNT = (
    *("--security-opt=no-new-privileges:false", "--cap-add=SETUID", "--cap-add=SETGID"),
    "--security-opt=seccomp=unconfined",
)
SANDBOX = {
    "docker": tuple(
        f"--security-opt={option}=unconfined" for option in ("apparmor", "systempaths")
    ),
    "podman": ("--security-opt=unmask=ALL",),
}
PODMAN_RUN = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--health-interval=disable")


@dataclass(frozen=True)
class Engine:
    """Docker's or podman's command line, and an image to run."""

    name: str
    image: str

    def __call__(self, *arguments: str, timeout_s: float = TIMEOUT_S) -> str:
        """Run a command of the engine; what it prints.

        Raises:
            AssertionError: it failed.
        """
        done = self.tried(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
        return done.stdout

    def tried(
        self, *arguments: str, timeout_s: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine that may fail."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        return [*(PODMAN if self.name == "podman" else ("docker",)), *arguments]

    def run(self, *options: str) -> list[str]:
        """`run`, with what this engine needs."""
        return ["run", *(PODMAN_RUN if self.name == "podman" else ()), *options]

    def inspect(self, what: str) -> dict[str, Any]:
        """What the engine knows of a container or an image."""
        found: list[dict[str, Any]] = json.loads(self("inspect", what))
        return found[0]

    @contextmanager
    def volume(self) -> Iterator[str]:
        """A new volume, removed at the end."""
        name = f"warpcall-test-{uuid.uuid4().hex[:8]}"
        self("volume", "create", name)
        try:
            yield name
        finally:
            self("volume", "rm", "--force", name)

    @contextmanager
    def server(self, volume: str, *options: str) -> Iterator[str]:
        """A server on that volume, removed at the end whatever it does; the container's id."""
        hardened = (*HARDENED, *options, data(volume))
        made = self(*self.run("--detach", *hardened, self.image)).split()[-1]
        try:
            yield made
        finally:
            self("rm", "--force", made)

    def beside(self, server: str, key: str, *python: str) -> list[str]:
        """A command that runs Python of the image, with this repository, where the server is local."""
        return self.command(
            *self.run("--rm", f"--network=container:{server}", "--read-only", "--tmpfs=/tmp"),
            *(f"--env=WARPCALL_API_KEY={key}", "--env=PYTHONPATH=/repository"),
            *(f"--volume={ROOT}:/repository:ro", "--workdir=/repository", "--entrypoint=python"),
            *(self.image, *python),
        )


def data(volume: str) -> str:
    """The option that gives a server its volume."""
    return f"--volume={volume}:/var/lib/warpcall"
