"""Settings are strict, come from the environment, and open no access by mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demo.server import COMMAND
from tests import forks
from warpcall_bench.settings import BenchSettings
from warpcall_service import extension
from warpcall_service.extension import load_settings
from warpcall_service.settings import Settings, SettingsError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WARPCALL_")]:
        monkeypatch.delenv(name)


def test_without_variables_it_is_a_server_of_this_machine() -> None:
    settings = BenchSettings.load()

    assert (settings.host, settings.port, settings.devices) == ("127.0.0.1", 8000, "auto")


def test_variables_are_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPCALL_PORT", "9001")
    monkeypatch.setenv("WARPCALL_ARENA_BYTES", "512MiB")
    monkeypatch.setenv("WARPCALL_QUEUE_TIMEOUT_S", "2.5")

    settings = BenchSettings.load(port=9002)

    assert (settings.port, settings.arena_bytes, settings.queue_timeout_s) == (9002, 512 << 20, 2.5)


def test_a_misspelt_variable_stops_the_server_and_is_recognised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WARPCALL_ARENA_BYTE", "1GiB")

    with pytest.raises(SettingsError, match=r"WARPCALL_ARENA_BYTE .* WARPCALL_ARENA_BYTES"):
        BenchSettings.load()


def test_the_variables_of_the_client_are_not_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPCALL_URL", "http://gpu-box:8000")
    monkeypatch.setenv("WARPCALL_API_KEY", "secret")

    BenchSettings.load()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WARPCALL_PORT", "65536"),
        ("WARPCALL_PORT", "http"),
        ("WARPCALL_DEVICES", "gpu"),
        ("WARPCALL_DEVICES", "cuda:0,cpu"),
        ("WARPCALL_ARENA_BYTES", "1000"),
        ("WARPCALL_QUEUE_TIMEOUT_S", "0"),
        ("WARPCALL_QUEUE_TIMEOUT_S", "nan"),
        ("WARPCALL_INSECURE", "perhaps"),
        ("WARPCALL_TRUSTED_PROXIES", "everyone"),
        ("WARPCALL_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("WARPCALL_ROOT_PATH", "/"),
        ("WARPCALL_ROOT_PATH", "warpcall"),
        ("WARPCALL_ROOT_PATH", "/lab/"),
        ("WARPCALL_ROOT_PATH", "/lab/../x"),
        ("WARPCALL_ROOT_PATH", "/a; Domain=x"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError, match=f"(?s){variable}.*{value}"):
        BenchSettings.load()


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("gpu-box", False),
    ],
)
def test_it_is_known_whether_others_reach_an_address(host: str, local: bool) -> None:
    assert BenchSettings.load(host=host).is_local is local


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (["--host", "0.0.0.0"], {}, "no API keys exist"),
        (["--host", "::"], {}, "--insecure"),
        (["--host", "192.168.1.2"], {}, "warpcall-server users add"),
        (["--host", "gpu-box"], {}, "WARPCALL_INSECURE"),
        ([], {"WARPCALL_TRUSTED_PROXIES": "10.0.0.1"}, "names a proxy, through which others"),
        ([], {"WARPCALL_ROOT_PATH": "/lab"}, "no API keys exist"),
        ([], {"WARPCALL_DATABASE_URL": "mysql://u:pass@h/d"}, "must be like postgresql://"),
        ([], {"WARPCALL_DATABASE_URL": "nothing"}, "must be like postgresql://"),
        ([], {"WARPCALL_TLS_CERT": "nowhere.pem"}, "nowhere.pem and no other file: No such file"),
        ([], {"WARPCALL_TLS_KEY": "key.pem"}, "WARPCALL_TLS_CERT"),
        (["--port", "70000"], {}, "WARPCALL_PORT"),
        ([], {"WARPCALL_HOTS": "127.0.0.1"}, "is it WARPCALL_HOST that is meant"),
        (["--devices", "cuda:7", "--port", "0"], {}, "cuda:7"),
        (["--host", "203.0.113.1", "--insecure"], {}, "cannot listen on 203.0.113.1:8000"),
    ],
)
def test_the_command_says_in_one_line_why_it_does_not_start(
    arguments: list[str], variables: dict[str, str], says: str, tmp_path: Path
) -> None:
    done = forks.run(
        [*COMMAND, *arguments],
        {**os.environ, "WARPCALL_DATA_DIR": str(tmp_path), **variables},
    )

    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("warpcall-server: ")
    assert says in last


def test_the_platform_adds_its_settings_to_those_of_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WARPCALL_JOB_MAX_CASES", "7")

    settings = load_settings(calls_only=True)

    assert isinstance(settings, BenchSettings)
    assert (settings.job_max_cases, settings.calls_only) == (7, True)


def test_a_server_without_the_platform_has_the_settings_of_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extension, "MODULE", "warpcall_bench_that_is_not_installed.extension")
    monkeypatch.setenv("WARPCALL_MAX_QUEUE", "3")

    settings = load_settings()

    assert type(settings) is Settings
    assert settings.max_queue == 3
    monkeypatch.setenv("WARPCALL_JOB_MAX_CASES", "7")
    with pytest.raises(SettingsError, match="WARPCALL_JOB_MAX_CASES is no setting"):
        load_settings()
