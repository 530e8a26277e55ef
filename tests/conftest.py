"""Options and fixtures that every test folder shares."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import ssl
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

WORKERS_PER_CORE = 2  # many tests wait, for leases and deadlines, and leave their core to others
MOST_WORKERS = 16  # there are some hundred files
HTTPX_TIMEOUT_S = 60.0
# Files whose tests have nothing in common: side by side they do not take longer than one of them.
APART = {
    f"tests/{name}.py"
    for name in (
        "e2e/test_lane_trouble",
        "service/auth/test_usage",
        "service/jobs/test_two_servers",
        "service/uploads/test_jobs_on_problems",
        "service/store/test_database_stalls",
        "e2e/test_problems_sdk",
        "service/store/test_lost_database",
        "service/store/test_trouble",
        "service/test_stalls",
    )
}
# What takes longest comes first, so that nothing long is left for the end. Files that compute most of
# their time and files that wait alternate, so that neither the cores nor the processes are idle.
LONG = (
    "kernels/test_compiles_for_gpu",
    "service/store/test_database_stalls",
    "test_docs",
    "chaos/test_slurm",
    "chaos/test_vanished",
    "pages/test_browser",
    "service/http/test_slow_clients",
    "service/jobs/test_two_servers",
    "service/launchers/test_ray",
    "service/test_stalls",
    "chaos/test_chaos",
    "service/jobs/test_runs",
    "pages/test_path_prefix",
    "client/transport/test_tls_deadlines",
    "service/uploads/test_jobs_with_uploads",
    "client/transport/test_deadlines",
    "service/runs/test_sandboxed_jobs",
    "e2e/test_lane_trouble",
    "oip/test_clients",
    "image/test_nginx",
    "monitoring/test_scraped",
    "service/auth/test_revocation",
    "service/worker/test_problem_jobs",
    "e2e/test_uploads_sdk",
    "service/jobs/test_job_fences",
    "service/launchers/test_kubernetes",
    "service/calls/test_mutated_requests",
    "forms/test_forms_browser",
    "service/store/test_trouble",
    "kernels/test_ops",
    "service/jobs/test_heavy_reads",
    "client/cli/test_cli_process",
    "service/store/test_lost_database",
    "service/store/test_kills",
    "service/auth/test_usage",
    "kernels/measuring/test_statistics",
    "service/cheats/verified/test_verified_cheats",
    "service/cheats/verified/test_verified_cheats_in_jobs",
    "e2e/test_survives",
    "e2e/test_jobs_sdk",
    "service/lanes/test_engine",
    "e2e/test_new_op",
    "service/http/test_http",
    "e2e/test_load",
    "service/http/test_tls",
    "e2e/test_crowd",
    "service/auth/test_rate_limits",
    "service/http/test_hostile_crowd",
    "client/test_jobs",
    "service/auth/test_access",
    "service/uploads/test_job_process",
    "kernels/test_conv_rows",
    "service/jobs/test_device_lease",
    "service/http/test_odd_requests",
    "service/auth/test_admin_cli",
    "kernels/test_warm",
)
RANK = {f"tests/{name}.py": rank for rank, name in enumerate(LONG)}


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
    with contextlib.suppress(ImportError):  # without httpx only kernels are tested
        from httpx._config import DEFAULT_TIMEOUT_CONFIG
        from httpx._transports import default as transports

        transports.create_ssl_context = _read_once(transports.create_ssl_context)  # type: ignore[attr-defined]
        # A server on a busy machine may take longer than the 5 s that httpx waits by default.
        DEFAULT_TIMEOUT_CONFIG.connect = DEFAULT_TIMEOUT_CONFIG.read = HTTPX_TIMEOUT_S
    with contextlib.suppress(ImportError):
        import hypothesis

        # On a busy machine any example may take long, and so may the making of one.
        patient = hypothesis.settings(
            deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
        )
        hypothesis.settings.register_profile("patient", patient)
        hypothesis.settings.load_profile("patient")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _read_once(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """Let all clients of httpx that trust the machine's certificates share them.

    Each client would read them anew, which takes 22 ms of CPU, although most connect without TLS.
    """

    @functools.cache
    def shared(file: str | None, folder: str | None) -> ssl.SSLContext:
        return create()

    def context(
        verify: object = True, cert: object = None, trust_env: bool = True
    ) -> ssl.SSLContext:
        if verify is not True or cert or not trust_env:
            return create(verify=verify, cert=cert, trust_env=trust_env)
        return shared(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    return context


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect the tests without the garbage collector, which would go through them again and again.

    What is there afterwards stays, so it is not searched for garbage later either.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # also the little garbage that importing leaves: to look for it takes a second
        gc.enable()


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """The device that kernels run on: "cpu" (interpreted) or "cuda" (compiled)."""
    return str(pytestconfig.getoption("--device"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """How many `-n auto` starts."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return min(MOST_WORKERS, WORKERS_PER_CORE * len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file run in one process, which shares servers among them, but for APART."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return nodeid if file in APART else file

    config.option.loadscopereorder = False  # not by the number of tests: in the order of RANK
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest files where several processes share the tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: RANK.get(item.nodeid.partition("::")[0], len(RANK)))
