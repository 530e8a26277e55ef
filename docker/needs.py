"""Prints what the given pyproject.toml files need, a line each, for `pip install -r`.

The image has the extra `telemetry`, too: nobody can install it there later.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

needs: list[str] = []
for name in sys.argv[1:]:
    project = tomllib.loads(Path(name).read_text())["project"]
    needs += project["dependencies"]
    needs += project["optional-dependencies"]["telemetry"]
sys.stdout.writelines(f"{need}\n" for need in dict.fromkeys(needs))
