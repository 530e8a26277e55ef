"""A real nginx for tests of what stands behind a proxy."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Where the PATH of accounts other than root lacks it.
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
# A developer may lack nginx. Where REQUIRE_NGINX is set, its absence is a failure.
needs_nginx = pytest.mark.skipif(
    not (NGINX and shutil.which("openssl")) and not os.environ.get("REQUIRE_NGINX"),
    reason="nginx or openssl is not installed: apt install nginx-light openssl",
)
BODIES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # what nginx may keep in files
TIMEOUT_S = 30.0


def temporary_paths(folder: Path) -> str:
    """Directives for the block `http`: the folders for bodies are Debian's, for root only."""
    return "".join(f"{name}_temp_path {folder}/bodies;" for name in BODIES)


def certificate_in(folder: Path, *addresses: str) -> tuple[Path, Path]:
    """A new certificate for 127.0.0.1, and more addresses, that is signed by itself, and its key."""
    names = ",".join(f"IP:{address}" for address in ("127.0.0.1", *addresses))
    certificate, key = folder / "fullchain.pem", folder / "privkey.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=warpcall test"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", f"subjectAltName={names}", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


@contextmanager
def running_nginx(folder: Path, configuration: str, port: int) -> Iterator[None]:
    """nginx with a configuration, from when it listens on `port` until it has ended."""
    (folder / "nginx.conf").write_text(configuration)
    command = (str(NGINX), "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf")
    # The setting `user` is for root, and only a warning for others.
    with subprocess.Popen((*command, "-g", "daemon off; user root;")) as nginx:
        try:
            _wait_for(port)
            yield
        finally:
            nginx.terminate()
    assert nginx.returncode == 0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < deadline, "nginx does not listen"
        else:
            return
