"""A real Prometheus and a real Alertmanager, with the configuration in docker/."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.nginx import free_port
from tests.waiting import until

DOCKER = Path(__file__).parents[2] / "docker"
PROMETHEUS = DOCKER / "prometheus"
ALERTMANAGER = DOCKER / "alertmanager/alertmanager.yml"
DASHBOARD = DOCKER / "grafana/dashboards/warpcall.json"
# Debian's name of the program, and its makers'.
ALERTMANAGERS = ("prometheus-alertmanager", "alertmanager")
PROGRAMS = ("prometheus", "promtool", "amtool")
# A developer may lack them. Where REQUIRE_PROMETHEUS is set, their absence is a failure.
needs_prometheus = pytest.mark.skipif(
    not (all(map(shutil.which, PROGRAMS)) and any(map(shutil.which, ALERTMANAGERS)))
    and not os.environ.get("REQUIRE_PROMETHEUS"),
    reason="Prometheus is not installed: apt install prometheus prometheus-alertmanager",
)
SCRAPE = "4s"  # between two scrapes, and the time of one: this machine may be busy
SOON = "10s"  # how long a condition lasts before its alert fires, in place of minutes


def rules() -> list[dict[str, Any]]:
    """The alerts."""
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@dataclass(frozen=True)
class Api:
    """The HTTP interface of one of the two programs."""

    url: str

    def get(self, path: str, **params: Any) -> Any:
        answer = httpx.get(f"{self.url}{path}", params=params, timeout=30)
        assert answer.status_code == 200, (params, answer.text)
        return answer.json()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now, each with its labels and its value."""
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["data"]["result"]
        return found

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        alerts = self.get("/api/v1/alerts")["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


@contextmanager
def running_prometheus(
    folder: Path, key: str, job: Mapping[str, Any], alertmanager: Api, others: Sequence[Any] = ()
) -> Iterator[Api]:
    """Prometheus with our configuration, but that time passes faster in it.

    Args:
        key: for /metrics.
        job: fields of our job that are other than in the file, such as its targets.
        others: more jobs.
    """
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": "1s"}
    config["alerting"]["alertmanagers"] = [
        {"static_configs": [{"targets": [alertmanager.url.removeprefix("http://")]}]}
    ]
    (ours,) = config["scrape_configs"]
    config["scrape_configs"] = [{**ours, **job}, *others]
    alerts = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        if "for" in rule:
            rule["for"] = SOON
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "alerts.yml").write_text(yaml.safe_dump(alerts))
    (folder / "key").write_text(f"{key}\n")
    port = free_port()
    command = [
        *("prometheus", f"--config.file={folder}/prometheus.yml", "--log.level=warn"),
        *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with _running(command, f"http://127.0.0.1:{port}") as api:
        yield api


@contextmanager
def running_alertmanager(folder: Path, receiver: str) -> Iterator[Api]:
    """Alertmanager with our configuration, whose example of a webhook has the URL `receiver`."""
    config = yaml.safe_load(with_examples())
    config["route"]["group_wait"] = "1s"
    (operators,) = config["receivers"]
    del operators["email_configs"]
    operators["webhook_configs"][0]["url"] = receiver
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        str(next(filter(None, map(shutil.which, ALERTMANAGERS)))),
        *(f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alertmanager"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="),
        "--log.level=warn",
    ]
    with _running(command, f"http://127.0.0.1:{port}") as api:
        yield api


def with_examples() -> str:
    """Alertmanager's configuration with the examples of receivers that are comments in the file."""
    lines = ALERTMANAGER.read_text().splitlines()
    return "\n".join(line.replace("    # ", "    ", 1) for line in lines)


@contextmanager
def _running(command: Sequence[str], url: str) -> Iterator[Api]:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            until(lambda: _is_ready(process, url), f"{command[0]} does not answer")
            yield Api(url)
        finally:
            process.terminate()


def _is_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    assert process.poll() is None, "it has ended"
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
