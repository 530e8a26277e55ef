"""What lies in docker/ holds against the programs that read it. Compose and Kubernetes files: `make
check`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from demo.server import running_server

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "docker/prometheus"


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    folder = shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    (folder / "key").write_text("wc_any\n")

    done = subprocess.run(
        ["promtool", "check", "config", folder / "prometheus.yml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout


def test_the_alerts_watch_metrics_that_there_are() -> None:
    named = set(re.findall(r"\bwarpcall_\w+", (PROMETHEUS / "alerts.yml").read_text()))

    with running_server({"WARPCALL_ARENA_BYTES": "64MiB"}) as server:
        families = set(re.findall(r"^# TYPE (\w+)", server.get("/metrics")[1], re.MULTILINE))

    assert named
    assert named <= families | {f"{family}_total" for family in families}
