"""Where Nsight Compute is, and why it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.worker import fake_sanitizer
from warpcall_bench.artefacts import ncu, tools
from warpcall_bench.settings import BenchSettings

GPU = ["cuda:0"]


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "ncu"
    file.write_text("")
    file.chmod(0o755)
    return str(file)


def driver(
    folder: Path, admin_only: bool, capabilities: str = "0000000000000000"
) -> dict[str, Path]:
    """The files of a driver, and of a process with capabilities."""
    parameters, status = folder / "params", folder / "status"
    parameters.write_text(f"EnableMSI: 1\nRmProfilingAdminOnly: {admin_only:d}\n")
    status.write_text(f"Name: x\nCapEff:\t{capabilities}\n")
    return {"parameters": parameters, "status": status}


def test_it_is_found_in_the_path(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}")

    assert ncu.program(BenchSettings.load()) == program
    assert ncu.program(BenchSettings.load(ncu="none")) == ""


def test_the_sanitizer_is_found_likewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_sanitizer.installed(tmp_path)
    given = BenchSettings.load(compute_sanitizer=path)
    monkeypatch.setenv("PATH", "/nowhere")

    assert tools.sanitizer(given) == path
    assert tools.sanitizer(BenchSettings.load(compute_sanitizer="none")) == ""
    finding = tools.check_programs(BenchSettings.load(ncu="none", compute_sanitizer=path))
    assert (finding.name, finding.state) == ("profilers", "ok")
    assert finding.text.endswith(f": no ncu, {path}")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.sanitizer(BenchSettings.load()) == path


def test_a_link_to_it_is_followed(program: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(program)

    assert ncu.program(BenchSettings.load(ncu=str(link))) == program
    assert ncu.program(BenchSettings.load(ncu=str(tmp_path / "gone"))) == ""


def test_a_server_that_can_profile(program: str, tmp_path: Path) -> None:
    files = driver(tmp_path, admin_only=False)

    assert ncu.trouble(BenchSettings.load(ncu=program), GPU, sandboxed=True, **files) == ""
    assert (
        ncu.trouble(
            BenchSettings.load(ncu=program), GPU, sandboxed=False, parameters=tmp_path / "x"
        )
        == ""
    )


def test_without_a_gpu_or_the_program(program: str) -> None:
    without_gpu = ncu.trouble(BenchSettings.load(ncu=program), ["cpu"], sandboxed=False)
    without_program = ncu.trouble(BenchSettings.load(ncu="none"), GPU, sandboxed=False)

    assert "no GPU" in without_gpu
    assert "set WARPCALL_NCU to the path of ncu" in without_program


@pytest.mark.parametrize(
    ("capabilities", "sandboxed", "forbidden"),
    [
        ("0000000000000000", False, True),
        ("000001ffffffffff", False, False),
        ("000001ffffffffff", True, True),
    ],
)
def test_the_driver_may_forbid_it(
    program: str, tmp_path: Path, capabilities: str, sandboxed: bool, forbidden: bool
) -> None:
    files = driver(tmp_path, True, capabilities)

    why = ncu.trouble(BenchSettings.load(ncu=program), GPU, sandboxed=sandboxed, **files)

    assert ("NVreg_RestrictProfilingToAdminUsers=0" in why) is forbidden
    assert ("from the sandbox" in why) is sandboxed
    assert ("CAP_SYS_ADMIN" in why) is (forbidden and not sandboxed)
