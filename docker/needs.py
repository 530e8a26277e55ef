"""Prints what pyproject.toml files need, with some extras, a line each, for `pip install -r`:
python docker/needs.py telemetry,cuda-kernels pyproject.toml client/pyproject.toml

The images have extras because nobody can install them there later.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

needs: list[str] = []
extras, *names = sys.argv[1:]
for name in names:
    project = tomllib.loads(Path(name).read_text())["project"]
    needs += project["dependencies"]
    for extra in extras.split(","):
        needs += project["optional-dependencies"].get(extra, [])
sys.stdout.writelines(f"{need}\n" for need in dict.fromkeys(needs))
