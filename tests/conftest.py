"""Options and fixtures that every test folder shares."""

from __future__ import annotations

import os
import signal
import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where kernels run: in Triton's interpreter on the CPU, or compiled on a GPU",
    )
    parser.addoption(
        "--large", action="store_true", help="also run the ops' large cases (needs --device cuda)"
    )
    parser.addoption(
        "--examples",
        type=int,
        default=100,
        help="random calls of each op that tests/gpu compares with its reference",
    )
    parser.addoption(
        "--fuzz-requests",
        type=int,
        default=10_000,
        help="of tests/service/http/test_odd_requests.py",
    )
    parser.addoption(
        "--hostile-seconds",
        type=float,
        default=10.0,
        help="that the attackers of tests/service/http/test_hostile_crowd.py stay",
    )
    parser.addoption(
        "--hostile-connections", type=int, default=60, help="of the attackers of the same"
    )
    parser.addoption("--image", help="the container image that tests/image runs")
    parser.addoption("--fuzz-seed", default="1", help="of the same; any text")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the interpreter before anything imports Triton: `@triton.jit` reads it once."""
    if "triton" in sys.modules:
        raise pytest.UsageError("a conftest.py imports triton (or torch) too early")
    if config.getoption("--device") == "cpu":
        if config.getoption("--large"):
            raise pytest.UsageError("--large needs --device cuda: the interpreter is too slow")
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    # Compiled modules are kept, also by the processes that tests start: without them each start
    # compiles the whole service anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["XDG_CONFIG_HOME"] = os.devnull  # whoever tests may have a profile: it has no say
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """The device that kernels run on: "cpu" (interpreted) or "cuda" (compiled)."""
    return str(pytestconfig.getoption("--device"))
