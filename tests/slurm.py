"""A Slurm of its own for a test: one machine with two GPUs that it does not have, in a folder."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nginx import free_port
from tests.waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
# A developer may lack Slurm. Where REQUIRE_SLURM is set, its absence is a failure.
needs_slurm = pytest.mark.skipif(
    not all(shutil.which(program, path=PATH) for program in PROGRAMS)
    and not os.environ.get("REQUIRE_SLURM"),
    reason="Slurm is not installed: apt install slurm-wlm munge",
)
NODE = "gpu-1"
CONFIGURATION = """
ClusterName=warpcall
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
GresTypes=gpu
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=2 Gres=gpu:2
PartitionName=gpu Nodes={node} Default=YES
"""
DEVICES = "NodeName={node} Name=gpu File={folder}/gpu[0-1]\n"
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Slurm:
    """A cluster of one machine."""

    folder: Path

    def __call__(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        """What a command of Slurm prints.

        Args:
            environment: its variables, beside those that name the cluster.
        """
        given = os.environ if environment is None else environment
        done = subprocess.run(
            command,
            env={**given, "SLURM_CONF": str(self.folder / "slurm.conf")},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """The state of each job that has not been forgotten, by its id or that of its array."""
        lines = self("squeue", "--noheader", "--states=all", "--format=%F %T").splitlines()
        return dict(line.split() for line in lines)

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)


@contextmanager
def slurm_cluster() -> Iterator[Slurm]:
    """A running cluster; at the end its jobs are cancelled, and its daemons stopped."""
    with tempfile.TemporaryDirectory(prefix="warpcall-slurm-") as name, ExitStack() as daemons:
        slurm = Slurm(Path(name))
        for inner in ("munge", "state", "spool"):
            (slurm.folder / inner).mkdir(mode=0o711)
        key = slurm.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        user = getpass.getuser()
        values = {
            "folder": name,
            "user": user,
            "host": socket.gethostname(),
            "port": free_port(),
            "node_port": free_port(),
            "node": NODE,
        }
        (slurm.folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        (slurm.folder / "gres.conf").write_text(DEVICES.format(**values))
        for number in range(2):
            (slurm.folder / f"gpu{number}").touch()
        munge = slurm.folder / "munge"
        options = {"key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        files = [f"--{option}={munge / file}" for option, file in options.items()]
        daemons.enter_context(
            _daemon(slurm, "munged", "-F", "--force", f"--socket={munge}/socket", *files)
        )
        until((munge / "socket").exists)
        daemons.enter_context(_daemon(slurm, "slurmctld", "-D"))
        daemons.enter_context(_daemon(slurm, "slurmd", "-D", "-N", NODE))
        until(lambda: _is_idle(slurm), "the machine does not join", timeout_s=TIMEOUT_S)
        try:
            yield slurm
        finally:
            slurm("scancel", "--user", user)
            until(lambda: not slurm("squeue", "--noheader"), timeout_s=TIMEOUT_S)


@contextmanager
def _daemon(slurm: Slurm, program: str, *options: str) -> Iterator[None]:
    with (slurm.folder / f"{program}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(shutil.which(program, path=PATH)), *options],
            env={**os.environ, "SLURM_CONF": str(slurm.folder / "slurm.conf")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()


def _is_idle(slurm: Slurm) -> bool:
    command = ["sinfo", "--noheader", "--format=%T"]
    environment = {**os.environ, "SLURM_CONF": str(slurm.folder / "slurm.conf")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.stdout.strip() == "idle"
