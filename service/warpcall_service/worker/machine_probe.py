"""Loads torch and opens devices for `warpcall-server doctor`, which reads what this program finds.

    python -m warpcall_service.worker.machine_probe DEVICES

The last line of stdout is a JSON object, as `doctor.machine.Machine` has it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import sys
from typing import Any

from warpcall_service.text import error_text

LOCKED_BYTES = 16 << 20  # of the region that is page-locked for the test
NOT_LOCKED = "memory not page-locked: "  # in the label of a device, see `devices.cuda`


def main() -> None:
    """Look at the machine, and write what was found."""
    found = look(sys.argv[1])
    sys.stdout.write(f"\n{json.dumps(found)}")


def look(wanted: str) -> dict[str, Any]:
    """The versions, and the GPUs of the setting `devices`."""
    import torch
    import triton

    from warpcall_kernels.compile.cache import SHIPPED
    from warpcall_service.devices.open_device import open_device

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "gpus": gpus,
        "devices": {},
        "broken": {},
        "unlocked": {},
        "compiler": _compiler(),
        "shipped": SHIPPED.is_dir(),
    }
    names = [f"cuda:{number}" for number in range(gpus)] if wanted == "auto" else wanted.split(",")
    for name in names:
        if name == "cpu":
            continue
        try:
            label = open_device(name, mmap.mmap(-1, LOCKED_BYTES), 1).label
        except Exception as error:  # noqa: BLE001  # whatever the driver says is what was found
            found["broken"][name] = error_text(error)
            continue
        found["devices"][name] = label
        if NOT_LOCKED in label:
            found["unlocked"][name] = label.partition(NOT_LOCKED)[2].rstrip(")")
    if found["devices"]:
        found["launch"] = _launch(next(iter(found["devices"])))
    return found


def _driver() -> str:
    with contextlib.suppress(Exception):  # NVML's errors, and those of a library that is missing
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return ""


def _compiler() -> str:
    """The C compiler that Triton would use."""
    named = os.environ.get("CC")
    programs = [named] if named else ["gcc", "clang"]
    return next(filter(None, map(shutil.which, programs)), "")


def _launch(device: str) -> str:
    """Compile one kernel and run it; return what failed."""
    import torch

    from warpcall_kernels.permute import permute

    try:
        x = torch.arange(35, device=device, dtype=torch.float32).reshape(5, 7)
        if not torch.equal(permute(x, (1, 0)).cpu(), x.cpu().T):
            return "it computed a wrong result"
    except Exception as error:  # noqa: BLE001  # as above
        return error_text(error)
    return ""


if __name__ == "__main__":
    main()
