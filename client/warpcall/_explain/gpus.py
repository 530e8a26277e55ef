"""Finds the architecture of a GPU by the GPU's name."""

from __future__ import annotations

import re

from warpcall.compile_reports import ARCHITECTURES
from warpcall.errors import InvalidInput

_NAMES: dict[str, tuple[str, ...]] = {
    "sm_80": ("a100", "a800", "a30"),
    "sm_86": ("a2", "a10", "a10g", "a16", "a40", "rtx a6000", "rtx 3070", "rtx 3080", "rtx 3090"),
    "sm_87": ("orin",),
    "sm_89": ("l4", "l40", "l40s", "rtx 4070", "rtx 4080", "rtx 4090", "rtx 6000 ada"),
    "sm_90": ("h100", "h200", "h800", "h20", "gh200"),
    "sm_100": ("b100", "b200", "gb200"),
    "sm_103": ("b300", "gb300"),
    "sm_120": ("rtx 5070", "rtx 5080", "rtx 5090", "rtx pro 6000"),
}
GPUS = {name: architecture for architecture, names in _NAMES.items() for name in names}
"""The architecture of each GPU whose name is known."""
_ARCHITECTURE = re.compile(r"sm_?(\d+[a-z]?)")
_WORD = re.compile(r"[a-z0-9_]+")
# Words that names of devices have beside the model, such as "NVIDIA A100-SXM4-80GB".
_NO_MODEL = re.compile(
    r"nvidia|geforce|jetson|tesla|rtx|ti|super|laptop|gpu|pcie|nvl|sxm\d?|hbm\d?e?|\d+gb"
    r"|generation|blackwell|server|workstation|edition"
)


def architecture_of(gpu: str, argument: str = "gpu") -> str:
    """The architecture that a text names: "sm_90" for "sm_90", "H100" and "NVIDIA H200".

    An architecture is not compared with those that the server can compile for, because a newer
    server may have more.

    Args:
        argument: what the text was given for, which the error's message names.

    Raises:
        InvalidInput: no GPU with this name is known.
    """
    text = str(gpu).strip().lower()
    if named := _ARCHITECTURE.fullmatch(text):
        return f"sm_{named[1]}"
    if found := _BY_MODEL.get(_model(text)):
        return found
    raise InvalidInput(
        f"{argument} must be one of {', '.join(ARCHITECTURES)}, or a GPU of {', '.join(GPUS)}, "
        f"got {gpu!r:.60}",
        field="gpu",
    )


def _model(name: str) -> str:
    words = _WORD.findall(name)
    return "".join(word for word in words if not _NO_MODEL.fullmatch(word)).removeprefix("rtx")


_BY_MODEL = {_model(name): architecture for name, architecture in GPUS.items()}
