"""The image that is tested, and one server of it that most tests share."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from docker import image as built
from tests.image.engine import Engine, data


@dataclass(frozen=True)
class Box:
    """A server in a container.

    Attributes:
        container: its id.
        volume: where its database lies.
        key: of the user alice.
    """

    engine: Engine
    container: str
    volume: str
    key: str

    def inside(self, *command: str) -> str:
        """What a command prints in the container."""
        return self.engine("exec", self.container, *command)

    def beside(self, *python: str) -> list[str]:
        """A command that runs Python beside the server, with alice's key."""
        return self.engine.beside(self.container, self.key, *python)

    def wait_ready(self) -> None:
        """Return once it is ready; connections wait while it starts."""
        done = self.engine.tried("exec", self.container, "warpcall", "health")
        for _ in range(600):  # it does not listen in its first moments
            if done.returncode == 0:
                return
            assert self.engine.inspect(self.container)["State"]["Running"], self.engine(
                "logs", self.container
            )
            done = self.engine.tried("exec", self.container, "warpcall", "health")
        raise AssertionError(f"not ready: {done.stdout}{done.stderr}")


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Engine:
    image = pytestconfig.getoption("--image")
    if not image:
        pytest.skip("needs --image, as `make image-test` gives it")
    return Engine(built.engine(), str(image))


@pytest.fixture(scope="module")
def box(engine: Engine) -> Iterator[Box]:
    with engine.volume() as volume:
        admin = engine.run("--rm", "--network=none", data(volume), engine.image)
        engine(*admin, "users", "add", "alice")
        key = json.loads(engine(*admin, "keys", "create", "alice", "--json"))["key"]
        with engine.server(volume) as container:
            made = Box(engine, container, volume, key)
            made.wait_ready()
            yield made


def finished(command: list[str], timeout_s: float = 300.0) -> str:
    """What a command that ends well prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
