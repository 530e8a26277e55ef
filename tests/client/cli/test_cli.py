"""The commands and options of `warpcall` that use no files, and its errors."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.client.command import WARPCALL, Command
from tests.client.scripted import ScriptedServer, Visit
from tests.client.scripted_ops import DECLARED, NOT_READY, READY, OpsServer
from warpcall import __version__


def completed(url: str, words: list[str]) -> list[str]:
    """What bash would offer for the last of the words."""
    line = {"COMP_WORDS": f"warpcall {' '.join(words)}", "COMP_CWORD": str(len(words))}
    environment = {**os.environ, **line, "WARPCALL_URL": url}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'warpcall'; import warpcall.__main__"],
        env={**environment, "_WARPCALL_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def on_terminal(warpcall: Command, *arguments: str) -> str:
    """The output of a command on a terminal of 80 columns, without escape sequences."""
    shown, written = pty.openpty()
    process = subprocess.Popen(
        [*WARPCALL, *arguments],
        env={**os.environ, "WARPCALL_URL": warpcall.server.url, "COLUMNS": "80"},
        stdout=written,
    )
    os.close(written)
    data = b""
    with contextlib.suppress(OSError):  # at the end of a terminal
        while piece := os.read(shown, 4096):
            data += piece
    os.close(shown)
    assert process.wait(30) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", data.decode()).replace("\r\n", "\n")


def test_the_version_is_printed(warpcall: Command) -> None:
    result = warpcall("--version")

    assert (result.code, result.out, result.err) == (0, f"warpcall {__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_names_every_command(arguments: list[str], warpcall: Command) -> None:
    result = warpcall(*arguments)

    for name in ("ops", "run", "health", "login", "--install-completion", "WARPCALL_API_KEY"):
        assert name in result.out + result.err


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("ops", ["--json", "--url"]),
        ("run", ["--out", "-o", "--timeout-s", "--json", "--url"]),
        ("health", ["--json", "--url"]),
        ("login", ["--url"]),
    ],
)
def test_the_help_of_a_command_names_every_flag(
    command: str, flags: list[str], warpcall: Command
) -> None:
    result, short = warpcall(command, "--help"), warpcall(command, "-h")

    assert (result.code, short) == (0, result)
    for flag in flags:
        assert flag in result.out


def test_kernels_gives_each_op_a_line(warpcall: Command) -> None:
    result = warpcall("kernels")

    title, *lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert title.split()[:3] == ["op", "inputs", "options"]
    assert [line.split()[0] for line in lines] == list(DECLARED)
    (masked_softmax,) = (line for line in lines if line.startswith("masked-softmax "))
    assert "x, [mask], [lengths]" in masked_softmax
    assert "[--scale X] [--causal]" in masked_softmax
    assert DECLARED["masked-softmax"]["equivalent"] in masked_softmax


def test_kernels_describes_one_op(warpcall: Command) -> None:
    result = warpcall("kernels", "permute")

    declared = DECLARED["permute"]
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"permute: {declared['summary']}\n")
    for text in (declared["equivalent"], "--dims N,N,...", declared["params"][0]["doc"], "-> out"):
        assert text in result.out


def test_kernels_shows_the_default_of_an_option(warpcall: Command) -> None:
    result = warpcall("kernels", "masked-softmax")

    assert "  [--scale X]  the number that x is multiplied by (default 1.0)\n" in result.out
    assert "[--causal]" in result.out
    assert "False" not in result.out


def test_kernels_prints_what_the_server_declares_as_json(warpcall: Command) -> None:
    every, one = warpcall("kernels", "--json"), warpcall("kernels", "isin", "--json")

    assert json.loads(every.out) == json.loads(json.dumps(list(DECLARED.values())))
    assert json.loads(one.out) == json.loads(json.dumps(DECLARED["isin"]))


def test_an_unknown_op_is_the_servers_to_name(warpcall: Command) -> None:
    result = warpcall("kernels", "sort")

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("warpcall: there is no op 'sort'")


def test_the_command_of_ops_answers_to_its_former_name_which_help_hides(warpcall: Command) -> None:
    assert warpcall("kernels", "isin") == warpcall("ops", "isin")
    assert "\n  kernels" not in warpcall("--help").out


def test_an_op_is_found_with_underscores_too(warpcall: Command) -> None:
    result = warpcall("ops", "masked_softmax")

    assert (result.code, result) == (0, warpcall("ops", "masked-softmax"))


def test_ops_on_a_terminal_fit_80_columns(warpcall: Command) -> None:
    out = on_terminal(warpcall, "ops")

    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    for name, declared in DECLARED.items():
        assert re.search(rf"^{name} +{declared['summary'].split()[0]}", out, re.MULTILINE)
    assert "[--scale X] [--causal]" in out


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["ops", "iss"], []),
        (["ops", "is"], ["isin"]),
        (["run", "masked-softmax-b"], ["masked-softmax-backward", "masked-softmax-bias-backward"]),
        (["bench", "perm"], ["permute"]),
        (["who"], ["whoami"]),
    ],
)
def test_a_shell_completes_commands_and_ops(
    words: list[str], shown: list[str], warpcall: Command
) -> None:
    assert completed(warpcall.server.url, words) == shown


def test_a_shell_completes_nothing_without_a_server(unused_port: int) -> None:
    assert completed(f"http://127.0.0.1:{unused_port}", ["ops", "is"]) == []


def test_health_of_a_ready_server_is_success(warpcall: Command) -> None:
    result, as_json = warpcall("health"), warpcall("health", "--json")

    assert (result.code, result.out) == (0, "ready\ncuda:0: ready, cuda:0 (NVIDIA H200)\n")
    assert (as_json.code, json.loads(as_json.out)) == (0, READY)


def test_health_of_a_starting_server_gives_reasons_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpsServer(ready=False) as server:
        warpcall = Command(server, monkeypatch, capsys)
        result, as_json = warpcall("health"), warpcall("health", "--json")

    assert result.code == 1
    assert result.out == (
        "unready\n  no lane is ready\ncuda:0: starting, no device yet\ndevices: failed\n"
    )
    assert (as_json.code, json.loads(as_json.out)) == (1, NOT_READY)


@pytest.mark.parametrize("arguments", [["kernels"], ["kernels", "permute"], ["health"]])
def test_an_address_on_the_line_goes_before_that_of_the_environment(
    arguments: list[str], warpcall: Command
) -> None:
    with OpsServer() as other:
        result = warpcall(*arguments, "--url", other.url)

        assert (result.code, result.err) == (0, "")
        assert len(other.targets) == 1
    assert warpcall.server.targets == []


def test_a_server_that_is_not_there_is_one_line(warpcall: Command, unused_port: int) -> None:
    result = warpcall("health", "--url", f"http://127.0.0.1:{unused_port}")

    assert (result.code, result.out) == (1, "")
    assert result.err == (
        f"warpcall: cannot reach 127.0.0.1:{unused_port}: Connection refused; "
        f"is a Warpcall server running at http://127.0.0.1:{unused_port}?\n"
    )


def test_the_key_comes_from_the_environment(
    warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPCALL_API_KEY", "wc-secret")

    result = warpcall("health")

    assert warpcall.server.seen.headers["authorization"] == "Bearer wc-secret"
    assert "wc-secret" not in result.out + result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sort"], "No such command 'sort'"),
        (["kernels", "--long"], "No such option: --long"),
        (["health", "now"], "unexpected extra argument"),
        (["run"], "Missing argument"),
        (["run", "permute"], "Missing argument"),
        (["kernels", "--url"], "requires an argument"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(
    arguments: list[str], message: str, warpcall: Command
) -> None:
    result = warpcall(*arguments)

    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://gpu-box", "url must be like http://host:8000, https://host or unix:///"),
        ("http://", "url must be like"),
    ],
)
def test_an_address_that_is_none_is_one_line(url: str, message: str, warpcall: Command) -> None:
    result = warpcall("health", "--url", url)

    assert result.code == 1
    assert result.err.startswith(f"warpcall: {message}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("name", ["", "a/b/c", "..", "../../readyz", "a?b", "a\udcff"], ids=ascii)
@pytest.mark.parametrize(
    "command", [["kernels"], ["run", "x.npy"]], ids=lambda arguments: arguments[0]
)
def test_a_name_that_no_op_has_is_not_sent(
    name: str, command: list[str], warpcall: Command
) -> None:
    result = warpcall(command[0], name, *command[1:])

    assert result.code == 1
    assert result.err.startswith("warpcall: the name of an op must be like masked-softmax, got")
    assert warpcall.server.targets == []


@pytest.mark.parametrize("members", [{}, [], {"kernels": 5}, {"kernels": [{"name": "permute"}]}])
@pytest.mark.parametrize(
    "arguments", [["kernels"], ["kernels", "permute"], ["run", "permute", "x.npy"]]
)
def test_a_server_of_another_kind_is_reported_as_such(
    members: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch, warpcall: Command
) -> None:
    def other(visit: Visit) -> None:
        visit.answer(200, json.dumps(members).encode(), {"Content-Type": "application/json"})

    with ScriptedServer(other) as server:
        result = warpcall(*arguments, "--url", server.url)

    assert (result.code, result.out) == (1, "")
    assert "is not a Warpcall server" in result.err
    assert result.err.count("\n") == 1


def test_a_server_that_answers_in_html_is_one_line(warpcall: Command) -> None:
    with ScriptedServer(lambda visit: visit.answer(200, b"<html>\nhello")) as server:
        result = warpcall("kernels", "--url", server.url)

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("warpcall: /v1/kernels must answer in JSON")
    assert result.err.count("\n") == 1


def test_a_reader_that_leaves_ends_the_command_without_a_word(warpcall: Command) -> None:
    read, write = os.pipe()
    os.close(read)

    done = subprocess.run(
        [*WARPCALL, "kernels", "--json"],
        env={**os.environ, "WARPCALL_URL": warpcall.server.url},
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (1, b"")


def test_an_output_that_takes_no_more_is_one_line(warpcall: Command) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*WARPCALL, "kernels", "--json"],
            env={**os.environ, "WARPCALL_URL": warpcall.server.url},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )

    assert (done.returncode, done.stderr) == (
        1,
        b"warpcall: standard output: No space left on device\n",
    )


def test_an_interrupted_command_leaves_no_traceback() -> None:
    arrived, done = threading.Event(), threading.Event()

    def silence(visit: Visit) -> None:
        arrived.set()
        done.wait(30)

    with ScriptedServer(silence) as server:
        process = subprocess.Popen(
            [*WARPCALL, "health", "--url", server.url], stderr=subprocess.PIPE, text=True
        )
        assert arrived.wait(30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        done.set()

    assert process.returncode == 130
    assert "Traceback" not in err
