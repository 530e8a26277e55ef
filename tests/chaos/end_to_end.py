"""Runs the end-to-end tests against three servers with one PostgreSQL: python -m tests.chaos.end_to_end

Against each server, where the SDK chooses the server of each call itself, and against nginx in
front of them. Servers without keys serve the tests of calls and jobs, others those of users.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.e2e.lab import UPLOADS, USERS
from tests.nginx import free_port, running_nginx, temporary_paths
from tests.servers import Server, running_server
from tests.service.databases import Database, new_postgresql, postgres_cluster
from tests.service.job_requests import BRIEF
from tests.waiting import until

SERVERS = 3
CONFIGURATION = """
pid {folder}/nginx.pid; events {{}}
http {{
    {paths} access_log off;
    client_max_body_size 0;
    upstream warpcall {{ {servers} }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://warpcall;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_request_buffering off;
            proxy_buffering off;
        }}
    }}
}}
"""


def main() -> int:
    """Run the suite against every address; 1 if a test fails."""
    failed = []
    with postgres_cluster() as postgres:
        for with_keys in (False, True):
            for position in range(SERVERS + 1):  # each time on an empty database
                with tempfile.TemporaryDirectory(prefix="warpcall-cluster-") as name:
                    database = new_postgresql(postgres, Path(name))
                    users = USERS if with_keys else {}
                    keys = {user: database.key(user, role) for user, role in users.items()}
                    with _cluster(database, Path(name)) as urls:
                        if not _passes(urls[position], position == SERVERS, keys):
                            failed.append(urls[position])
    return int(bool(failed))


@contextmanager
def _cluster(database: Database, folder: Path) -> Iterator[list[str]]:
    """Addresses of three servers, and of nginx in front of them."""
    with ExitStack() as stack:
        servers: list[Server] = []
        for number in range(SERVERS):
            own = {"WARPCALL_DATA_DIR": str(folder / str(number)), "WARPCALL_UPLOADS": UPLOADS}
            settings = {**database.settings, **own, **BRIEF, "WARPCALL_ARENA_BYTES": "256MiB"}
            servers.append(stack.enter_context(running_server(settings)))
        for server in servers:
            until(lambda at=server: f'"uploads":"{UPLOADS}"' in at.get("/readyz")[1])  # type: ignore[misc]
        port = free_port()
        configuration = CONFIGURATION.format(
            folder=folder,
            paths=temporary_paths(folder),
            servers=" ".join(f"server 127.0.0.1:{server.port};" for server in servers),
            port=port,
        )
        stack.enter_context(running_nginx(folder, configuration, port))
        yield [*(server.url for server in servers), f"http://127.0.0.1:{port}"]


def _passes(url: str, is_nginx: bool, keys: dict[str, str]) -> bool:
    pairs = ",".join(f"{user}={key}" for user, key in keys.items())
    environment = {**os.environ, "WARPCALL_TEST_URL": url, "WARPCALL_TEST_KEYS": pairs}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "tests/e2e", *sys.argv[1:]]
    what = f"{'nginx' if is_nginx else 'a server'}, {'with' if keys else 'without'} keys"
    print(f"\n{url}: {what}", flush=True)  # noqa: T201
    return subprocess.run(command, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
