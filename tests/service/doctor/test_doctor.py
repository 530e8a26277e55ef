"""`warpcall-server doctor`: each check finds the fault that is planted, and nothing where all is well."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.nginx import free_port
from tests.servers import Server
from tests.service.databases import REVISION, Database
from warpcall_bench.runs.findings import check_sandbox
from warpcall_bench.settings import BenchSettings
from warpcall_service.auth import users
from warpcall_service.auth.users import Snapshot
from warpcall_service.doctor import checks, machine
from warpcall_service.doctor.command import find
from warpcall_service.doctor.machine import Machine, check_machine
from warpcall_service.doctor.probe import is_ours
from warpcall_service.findings import Finding
from warpcall_service.store.database import Store, StoreError

GPU = Machine(
    torch="2.13.0",
    triton="3.7.1",
    cuda="13.0",
    driver="580.1",
    gpus=2,
    devices={"cuda:0": "cuda:0 (NVIDIA H200)"},
    compiler="/usr/bin/gcc",
)
NAMES = [
    *("settings", "driver", "torch", "devices", "compiler", "locked-memory", "shared-memory"),
    *(
        "bubblewrap",
        "seccomp",
        "cgroups",
        "scratch",
        "profilers",
        "database",
        "clock",
        "port",
        "disk",
        "tls",
        "keys",
    ),
]
LIVE = ["devices", "bubblewrap", "database", "shared-memory", "clock", "disk", "tls", "keys"]


def settings(tmp_path: Path, **changes: Any) -> BenchSettings:
    return BenchSettings(**{"data_dir": tmp_path / "data", "devices": "cpu", **changes})


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {one.name: one for one in found}


@pytest.mark.slow  # starts processes
def test_a_machine_where_all_is_well_passes_every_check(tmp_path: Path, sqlite: Database) -> None:
    sqlite.key("ann", "admin")
    given = {"WARPCALL_PORT": str(free_port()), "WARPCALL_DEVICES": "cpu"}
    database = Database("sqlite", {**sqlite.settings, **given})

    report = json.loads(database.command("doctor", "--json"))
    lines = database.command("doctor").splitlines()

    found = report["checks"]
    assert report["status"] == "ok", report
    assert [(one["name"], one["state"], one["advice"]) for one in found] == [
        (name, "ok", "") for name in NAMES
    ]
    assert [line.split()[:2] for line in lines[:-1]] == [["ok", name] for name in NAMES]
    assert lines[-1] == "18 checks: 0 failed, 0 with a warning"


@pytest.mark.slow  # starts processes
def test_a_failed_check_says_what_to_do_and_is_the_exit_status(sqlite: Database) -> None:
    given = {"WARPCALL_HOST": "0.0.0.0", "WARPCALL_PORT": "0", "WARPCALL_DEVICES": "cpu"}
    database = Database("sqlite", {**sqlite.settings, **given})

    database.command("doctor", status=1)
    database.command("doctor", "--json", status=1)


@pytest.mark.slow  # starts processes
def test_settings_that_cannot_be_used_are_the_only_finding(sqlite: Database) -> None:
    broken = Database("sqlite", {**sqlite.settings, "WARPCALL_PROT": "8000"})

    broken.command("doctor", status=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPCALL_PROT", "8000")
        (finding,) = find()

    assert (finding.name, finding.state) == ("settings", "failed")
    assert "WARPCALL_PROT" in finding.text


@pytest.mark.parametrize(
    ("changes", "devices", "name", "state", "text"),
    [
        ({}, "auto", "driver", "ok", "driver 580.1, 2 GPUs"),
        ({"driver": "", "gpus": 0}, "cuda:0", "driver", "failed", "no NVIDIA driver"),
        ({"driver": "", "gpus": 0}, "auto", "driver", "warning", "computed on the CPU"),
        ({"driver": "", "gpus": 0, "cuda": None}, "auto", "driver", "ok", "none is needed"),
        ({"trouble": "it ended with signal 11"}, "auto", "torch", "failed", "signal 11"),
        ({"cuda": None}, "cuda:0", "torch", "failed", "no CUDA"),
        ({"gpus": 0}, "auto", "torch", "failed", "although a driver answers"),
        ({"broken": {"cuda:7": "no such"}}, "cuda:7", "devices", "failed", "cuda:7: no such"),
        ({"launch": "no compiler"}, "auto", "compiler", "failed", "no compiler"),
        ({"compiler": ""}, "auto", "compiler", "warning", "no C compiler"),
        ({"compiler": "", "shipped": True}, "auto", "compiler", "ok", "shipped"),
        ({"unlocked": {"cuda:0": "CUDA error 2"}}, "auto", "locked-memory", "warning", "error 2"),
    ],
)
def test_faults_of_what_computes_are_found(
    changes: dict[str, Any], devices: str, name: str, state: str, text: str, tmp_path: Path
) -> None:
    faulty = Machine(**{**vars(GPU), **changes})

    found = by_name(check_machine(settings(tmp_path, devices=devices), faulty))

    assert found[name].state == state
    assert text in found[name].text
    assert bool(found[name].advice) == (state != "ok")


@pytest.mark.slow  # starts processes
def test_a_gpu_that_is_not_there_is_found_by_a_process_that_opens_it(tmp_path: Path) -> None:
    found = machine.examine(settings(tmp_path, devices="cuda:63"))

    assert found.trouble == ""
    assert "there is no cuda:63" in found.broken["cuda:63"]


@pytest.mark.slow  # starts processes
def test_torch_that_crashes_or_hangs_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    crashed = machine.examine(settings(tmp_path))
    (tmp_path / "torch/__init__.py").write_text("import time; time.sleep(60)")
    hung = machine.examine(settings(tmp_path), limit_s=2)
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libcudart is missing')")
    missing = machine.examine(settings(tmp_path))

    assert "ended with signal 11" in crashed.trouble
    assert "took over 2 s" in hung.trouble
    assert "libcudart is missing" in missing.trouble


def test_shared_memory_that_is_too_small_or_missing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = settings(tmp_path, user_max_shared_bytes="1PiB")

    assert checks.check_shared_memory(large).state == "warning"
    monkeypatch.setattr(checks, "SHM", tmp_path / "none")
    assert checks.check_shared_memory(large).state == "failed"
    assert checks.check_shared_memory(settings(tmp_path)).state == "ok"


def test_a_sandbox_that_cannot_start_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(tmp_path, uploads="sandboxed")
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))

    found = by_name(check_sandbox(given))

    assert found["bubblewrap"].state == "failed"
    assert "bwrap is not installed" in found["bubblewrap"].text


def test_missing_parts_of_the_sandbox_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warpcall_bench.runs import cgroups, seccomp

    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    monkeypatch.setattr(cgroups, "_PROC", no_groups(tmp_path))
    seccomp.program.cache_clear()
    try:
        found = by_name(check_sandbox(settings(tmp_path, uploads="trusted")))
        (tmp_path / "data").mkdir()
        sandboxed = by_name(check_sandbox(settings(tmp_path, uploads="sandboxed")))
    finally:
        seccomp.program.cache_clear()

    assert found["cgroups"].state == "warning"
    assert sandboxed["seccomp"].state == "failed"


def no_groups(folder: Path) -> Path:
    """A /proc of a process in no control group."""
    (folder / "proc/self").mkdir(parents=True)
    for name in ("cgroup", "mountinfo"):
        (folder / "proc/self" / name).write_text("")
    return folder / "proc"


def test_faults_of_the_database_are_found(database: Database, tmp_path: Path) -> None:
    store = database.store()
    states = [checks.check_database(store).state] if database.kind == "postgresql" else ["warning"]
    store.migrate()
    states.append(checks.check_database(store).state)
    assert REVISION in checks.check_database(store).text
    database.sql("UPDATE alembic_version SET version_num = '0015'")
    states.append(checks.check_database(store).state)
    database.sql("UPDATE alembic_version SET version_num = '9999'")
    states.append(checks.check_database(store).state)
    store.close()

    assert states == ["warning", "ok", "warning", "failed"]
    away = Store("postgresql://nobody@127.0.0.1:1/none", tmp_path)
    assert checks.check_database(away).state == "failed"
    assert checks.check_database(StoreError("no such form")).state == "failed"


def test_a_file_that_is_no_database_is_found(sqlite: Database) -> None:
    store = sqlite.store()
    assert store.path is not None
    store.path.parent.mkdir(parents=True, exist_ok=True)
    store.path.write_text("no database" * 1000)

    found = checks.check_database(store)

    assert (found.state, "no SQLite database" in found.text) == ("failed", True)


def test_a_clock_that_is_wrong_is_found(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.key("ann")
    store, real = database.store(), time.time

    right = checks.check_clock(store)
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    ahead = checks.check_clock(store)
    monkeypatch.setattr(time, "time", lambda: real() - 60)
    behind = checks.check_clock(store)
    monkeypatch.undo()
    database.sql("UPDATE api_keys SET created_at = created_at + 1000")
    early = checks.check_clock(store)
    store.close()

    assert [one.state for one in (right, ahead, behind, early)] == ["ok", *["warning"] * 3]
    assert "60 s ahead" in ahead.text
    assert "60 s behind" in behind.text
    assert "a key was created" in early.text


def test_a_port_that_another_program_has_is_found(tmp_path: Path, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.1)
        taken = checks.check_port(
            settings(tmp_path, port=other.getsockname()[1]), 0, lambda host, port: False
        )
    ours = checks.check_port(
        settings(tmp_path, port=int(server.url.rpartition(":")[2])), 0, is_ours
    )
    elsewhere = checks.check_port(settings(tmp_path, host="192.0.2.1"), 0, _is_ours_never)

    assert (taken.state, "Address already in use" in taken.text) == ("failed", True)
    assert (ours.state, "a Warpcall server runs already" in ours.text) == ("ok", True)
    assert elsewhere.state == "failed"


def _is_ours_never(host: str, port: int) -> bool:
    del host, port
    return False


def test_the_port_of_grpc_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc", reason="needs the extra grpc")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = checks.check_port(settings(tmp_path, grpc_port=port), 0, _is_ours_never)
    free = checks.check_port(settings(tmp_path, grpc_port=port), 0, _is_ours_never)
    monkeypatch.setattr(checks, "OF_GRPC", ("grpc", "no_such_package.module"))
    missing = checks.check_port(settings(tmp_path, grpc_port=port), 0, _is_ours_never)
    unwanted = checks.check_port(settings(tmp_path), 0, _is_ours_never)

    assert taken.state == "failed"
    assert f"WARPCALL_GRPC_PORT: cannot listen on 127.0.0.1:{port}" in taken.text
    assert (free.state, f"{port} for gRPC" in free.text) == ("ok", True)
    assert (missing.state, "needs no_such_package.module, not" in missing.text) == ("failed", True)
    assert (unwanted.state, "gRPC" in unwanted.text) == ("ok", False)


def test_the_further_ports_of_several_servers_are_checked(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        given = settings(tmp_path, port=port - 2, servers="per-gpu")

        two, one = (checks.check_port(given, gpus, _is_ours_never) for gpus in (2, 1))

    assert (two.state, one.state) == ("failed", "ok")


def test_a_data_folder_that_cannot_be_written_or_is_full_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()

    states = [
        checks.check_disk(settings(tmp_path)).state,
        checks.check_disk(settings(tmp_path, data_dir=Path("/proc/none"))).state,
        checks.check_disk(settings(tmp_path, data_dir=tmp_path / "file")).state,
    ]
    for least in ("FEW_FREE_BYTES", "LEAST_FREE_BYTES"):
        monkeypatch.setattr(checks, least, 1 << 60)
        states.append(checks.check_disk(settings(tmp_path)).state)

    assert states == ["ok", "failed", "failed", "warning", "failed"]


def make_pair(folder: Path, days: int) -> tuple[Path, Path]:
    """A certificate that ends in so many days, and its key."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    certificate, key = folder / f"{days}.pem", folder / f"{days}.key"
    request = [*("openssl", "req", "-new", "-nodes", "-subj", "/CN=warpcall", "-newkey", "ec")]
    request += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", str(key)]
    made = subprocess.run(request, check=True, capture_output=True, timeout=60)
    # `openssl req -x509` refuses a certificate that has ended already.
    sign = ["openssl", "x509", "-req", "-signkey", str(key), "-days", str(days)]
    sign += ["-out", str(certificate)]
    subprocess.run(sign, check=True, capture_output=True, timeout=60, input=made.stdout)
    return certificate, key


def test_faults_of_the_certificate_are_found(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, days=40)
    soon, its_key = make_pair(tmp_path, days=2)

    found = [
        checks.check_tls(settings(tmp_path, tls_cert=certificate, tls_key=key)),
        checks.check_tls(settings(tmp_path, tls_cert=soon, tls_key=its_key)),
        checks.check_tls(settings(tmp_path, tls_cert=certificate, tls_key=its_key)),
        checks.check_tls(settings(tmp_path, tls_cert=tmp_path / "none.pem")),
        checks.check_tls(settings(tmp_path)),
        checks.check_tls(settings(tmp_path, host="0.0.0.0")),
        checks.check_tls(settings(tmp_path, host="0.0.0.0", trusted_proxies="10.0.0.1")),
    ]

    assert [one.state for one in found] == [
        *("ok", "warning", "failed", "failed", "ok", "warning", "ok"),
    ]
    assert "valid for 39 more days" in found[0].text


def test_a_certificate_that_has_expired_is_found(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, days=-1)

    found = checks.check_tls(settings(tmp_path, tls_cert=certificate, tls_key=key))

    assert (found.state, "expired" in found.text) == ("failed", True)


@pytest.mark.parametrize("days", [-1, 2, 40])
def test_the_end_of_a_certificate_is_known_before_and_after_it(tmp_path: Path, days: int) -> None:
    certificate, key = make_pair(tmp_path, days)

    end_s = checks.certificate_end_s(settings(tmp_path, tls_cert=certificate, tls_key=key))

    assert end_s is not None
    assert abs(end_s - time.time() - days * checks.DAY_S) < 120


def test_a_certificate_that_cannot_be_used_has_no_end(tmp_path: Path) -> None:
    certificate, _ = make_pair(tmp_path, days=40)
    _, other_key = make_pair(tmp_path, days=2)

    assert checks.certificate_end_s(settings(tmp_path)) is None
    for wrong in (other_key, tmp_path / "none"):
        found = settings(tmp_path, tls_cert=certificate, tls_key=wrong)
        assert checks.certificate_end_s(found) is None


def test_missing_keys_and_roles_are_found(tmp_path: Path, store: Store) -> None:
    def roles(**changes: Any) -> Finding:
        with store.read() as session:
            keys = users.snapshot(session, Snapshot())
        return checks.check_roles(settings(tmp_path, **changes), keys)

    found = [roles(), roles(require_keys=True), roles(host="0.0.0.0")]
    with store.write() as session:
        users.add_user(session, "ann")
        session.flush()
        first, _ = users.create_key(session, "ann", "bench")
        first_id = first.id
    found.append(roles(host="0.0.0.0"))
    with store.write() as session:
        second, _ = users.create_key(session, "ann", "admin")
        second_id = second.id
    found.append(roles())
    with store.write() as session:
        for key in (first_id, second_id):
            users.revoke_key(session, key)
    found.append(roles())

    assert [one.state for one in found] == ["ok", "failed", "failed", "warning", "ok", "failed"]
    assert found[4].text == "1 with the role admin, 1 with the role bench"
    assert checks.check_roles(settings(tmp_path), None).state == "failed"


@pytest.mark.slow  # starts processes
def test_a_server_that_cannot_start_says_what_else_is_wrong(sqlite: Database) -> None:
    given = {"WARPCALL_HOST": "0.0.0.0", "WARPCALL_PORT": "0", "WARPCALL_DEVICES": "cpu"}
    quiet = Database("sqlite", {**sqlite.settings, **given})
    telling = Database("sqlite", {**quiet.settings, "WARPCALL_DIAGNOSE": "true"})

    plain, with_findings = quiet.command(status=2), telling.command(status=2)

    assert "no API keys exist" in plain
    assert "doctor" not in plain
    assert "warpcall-server doctor:" in with_findings
    assert "warning  tls " in with_findings
    assert "failed   keys " in with_findings
    assert "\nok " not in with_findings
