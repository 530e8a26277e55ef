"""Prints what the given pyproject.toml files need, a line each, for `pip install -r`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

for name in sys.argv[1:]:
    needs = tomllib.loads(Path(name).read_text())["project"]["dependencies"]
    sys.stdout.writelines(f"{need}\n" for need in needs)
