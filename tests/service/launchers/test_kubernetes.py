"""Servers with the environment, the probes and the end that docker/kubernetes/cluster gives pods."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from tests.servers import Server, running_server
from tests.service.databases import Database, Postgres, environment, new_postgresql
from tests.service.job_requests import BRIEF, ended, reached, submit
from tests.service.jobs.test_two_servers import WAITS, measured_once
from tests.waiting import until
from warpcall import Client
from warpcall_service.settings import Settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docker/kubernetes"
NAMESPACE = "gpus"
X = np.arange(6, dtype=np.float32).reshape(2, 3)
# A pod's name is the host name of its processes.
NAMED = ("unshare", "-u" if os.geteuid() == 0 else "-Uru", "sh", "-ec", 'hostname "$0"; exec "$@"')


def objects(folder: Path) -> dict[tuple[str, str], Any]:
    """The objects in a folder's files, by kind and name."""
    found = {}
    for path in folder.glob("*.yaml"):
        for one in yaml.safe_load_all(path.read_text()):
            found[one["kind"], one.get("metadata", {}).get("name", "")] = one
    return found


CLUSTER = objects(FOLDER / "cluster")
STATEFUL_SET = CLUSTER["StatefulSet", "warpcall"]["spec"]
POD = STATEFUL_SET["template"]["spec"]
CONTAINER = POD["containers"][0]
PORT = CONTAINER["ports"][0]["containerPort"]


def variables_of_pod(number: int, database: Database) -> dict[str, str]:
    """The environment of a pod's container, as Kubernetes and the image make it."""
    image = re.findall(r"WARPCALL_\w+=\S+", (ROOT / "Dockerfile").read_text())
    of_pod = {"metadata.name": f"warpcall-{number}", "metadata.namespace": NAMESPACE}
    secret = {("warpcall-database", "url"): database.settings["WARPCALL_DATABASE_URL"]}
    found = dict(item.split("=", 1) for item in image if item != "WARPCALL_WARM=true")
    for one in CONTAINER["env"]:
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            value = of_pod[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            value = secret[source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]]
        else:
            value = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], one["value"])
        found[one["name"]] = value
    return found


class Pods:
    """Two pods, each with an address and a host name of its own.

    Attributes:
        continue_file: lets jobs go on that wait.
        key: an API key.
        names: of the pods in the DNS.
        servers: in the pods.
        variables: the environment of each pod.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self.continue_file = folder / "continue_file"
        self.key = database.key("ann", "bench")
        self.names = [f"warpcall-{n}.warpcall-nodes.{NAMESPACE}.svc" for n in range(2)]
        self.servers: list[Server] = []
        self.variables = [variables_of_pod(n, database) for n in range(2)]
        network = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(254) + 1}"
        self._addresses = {name: f"{network}.{n + 1}" for n, name in enumerate(self.names)}
        for number, own in enumerate(self.variables):
            own |= {
                "WARPCALL_HOST": self._addresses[self.names[number]],  # pods have their own 0.0.0.0
                "WARPCALL_PORT": str(Settings.load().port),
                "WARPCALL_DEVICES": "cpu",
                "WARPCALL_DATA_DIR": str(folder / str(number)),
                "WARPCALL_ARENA_BYTES": "16MiB",
                "WARPCALL_JOB_MODULES": "tests.service.misbehaving",
                "PYTHONPATH": os.pathsep.join([BRIEF["PYTHONPATH"], str(ROOT)]),
                "CONTINUE_FILE": str(self.continue_file),
            }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the servers, and let this process resolve their names."""
        resolve = socket.getaddrinfo

        def resolved(host: Any, *rest: Any, **named: Any) -> Any:
            return resolve(self._addresses.get(host, host), *rest, **named)

        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", resolved)
            for own in self.variables:
                named = (*NAMED, own["POD_NAME"])
                self.servers.append(stack.enter_context(running_server(own, named)))
            yield

    def url(self, number: int) -> str:
        return f"http://{self.names[number]}:{PORT}"

    def http(self, number: int) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url(number), headers=headers, timeout=30)

    def states(self, number: int) -> dict[int, str]:
        """The states of both servers, as one of them has them."""
        with self.http(number) as http:
            nodes = http.get("/v1/nodes").raise_for_status().json()["nodes"]
        return {int(node["host"][-1]): node["state"] for node in nodes}

    def pre_stop(self, number: int) -> None:
        """Run what Kubernetes runs in a pod before it sends SIGTERM."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            CONTAINER["lifecycle"]["preStop"]["exec"]["command"],
            env={**environment(self.variables[number]), "PATH": path},
            check=True,
            timeout=60,
        )


@pytest.fixture
def pods(postgres: Postgres, tmp_path: Path) -> Iterator[Pods]:
    may = subprocess.run([*NAMED, "pod", "true"], capture_output=True, check=False)
    if may.returncode and not os.environ.get("REQUIRE_NETWORKS"):
        pytest.skip("a host name of its own needs user namespaces, or root")
    pods = Pods(new_postgresql(postgres, tmp_path), tmp_path)
    with pods.running():
        yield pods


def test_a_pod_that_stops_hands_its_job_over_and_no_call_fails(pods: Pods) -> None:
    ready = CONTAINER["readinessProbe"]["httpGet"]
    assert CONTAINER["ports"][0]["name"] == ready["port"]
    assert all(httpx.get(pods.url(n) + ready["path"]).status_code == 200 for n in range(2))
    until(lambda: pods.states(0) == {0: "alive", 1: "alive"})
    with Client([pods.url(0), pods.url(1)], api_key=pods.key) as gpu:
        hosts = {node.id: node.host for node in gpu.nodes().nodes}
        assert {node.host: node.url for node in gpu.nodes().nodes} == {
            f"warpcall-{n}": pods.url(n) for n in range(2)
        }
        with pods.http(0) as http:
            job = reached(http, submit(http, **WAITS), lambda found: found["cases_done"] == 1)
        number = int(hosts[job["node"]][-1])
        process, other = pods.servers[number].process, 1 - number

        pods.pre_stop(number)
        until(lambda: pods.states(other) == {number: "draining", other: "alive"})
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            np.testing.assert_array_equal(gpu.permute(X, dims=(1, 0)), X.T)
        np.testing.assert_array_equal(gpu.permute(X, dims=(1, 0)), X.T)

    assert process.returncode == 0
    until(lambda: pods.states(other) == {number: "stopped", other: "alive"})
    pods.continue_file.touch()
    with pods.http(other) as http:
        done = ended(http, job)
        assert (done["state"], done["attempts"]) == ("succeeded", 1)
        assert hosts[done["node"]] == f"warpcall-{other}"
        assert measured_once(http, done)


def test_a_pod_has_the_time_that_a_server_needs_to_stop() -> None:
    *_, command = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    waits_s = int(command.rpartition("sleep ")[2])

    assert POD["terminationGracePeriodSeconds"] >= 2 * waits_s + Settings.load().stop_s


@pytest.mark.parametrize("folder", ["single", "cluster"])
def test_a_pod_has_the_time_that_a_server_needs_to_start(folder: str) -> None:
    found = objects(FOLDER / folder)
    kind = "Deployment" if folder == "single" else "StatefulSet"
    probe = found[kind, "warpcall"]["spec"]["template"]["spec"]["containers"][0]["startupProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] >= start_timeout_of_image()


def test_the_check_of_the_image_leaves_the_server_the_time_to_start() -> None:
    period = re.search(r"--start-period=(\d+)s", (ROOT / "Dockerfile").read_text())

    assert period is not None
    assert int(period[1]) >= start_timeout_of_image()


def start_timeout_of_image() -> int:
    """Seconds that a server of the image for GPUs may take to start."""
    found = re.search(r"WARPCALL_START_TIMEOUT_S=(\d+)", (ROOT / "Dockerfile").read_text())
    assert found is not None
    return int(found[1])


def test_the_services_are_those_of_the_pods() -> None:
    labels = STATEFUL_SET["template"]["metadata"]["labels"]
    named = CLUSTER["Service", STATEFUL_SET["serviceName"]]["spec"]
    common = CLUSTER["Service", "warpcall"]["spec"]

    assert labels == STATEFUL_SET["selector"]["matchLabels"]
    assert labels == named["selector"] == common["selector"]
    assert labels == CLUSTER["PodDisruptionBudget", "warpcall"]["spec"]["selector"]["matchLabels"]
    assert (named["clusterIP"], named["publishNotReadyAddresses"]) == ("None", True)
    assert [port["targetPort"] for port in (*named["ports"], *common["ports"])] == ["http"] * 2
    assert PORT == named["ports"][0]["port"] == Settings.load().port
    assert [r["nvidia.com/gpu"] for r in CONTAINER["resources"].values()] == [1, 1]


@pytest.mark.parametrize("folder", ["single", "cluster"])
def test_no_pod_gets_variables_of_the_service_that_are_named_like_settings(folder: str) -> None:
    found = objects(FOLDER / folder)
    pods = [one["spec"] for (kind, _), one in found.items() if kind == "Pod"]
    pods += [
        one["spec"]["template"]["spec"]
        for one in found.values()
        if "template" in one.get("spec", {})
    ]

    assert ("Service", "warpcall") in found, "its variables begin with WARPCALL_"
    assert len(pods) == 2
    assert [pod["enableServiceLinks"] for pod in pods] == [False, False]


@pytest.mark.parametrize(
    "file", sorted(FOLDER.glob("*/kustomization.yaml")), ids=lambda file: file.parent.name
)
def test_kustomizations_name_files_of_theirs_or_folders_beside_them(file: Path) -> None:
    resources = [file.parent / name for name in yaml.safe_load(file.read_text())["resources"]]

    assert all(one.is_file() or (one / "kustomization.yaml").is_file() for one in resources)
    # kustomize refuses a base that contains the kustomization itself.
    assert not any(file.resolve().is_relative_to(one.resolve()) for one in resources)
