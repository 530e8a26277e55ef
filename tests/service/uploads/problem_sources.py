"""Problems as users upload them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.service.worker.problem_sources import ROW_NORM

__all__ = ["ROW_NORM", "SCALE", "THRICE", "forging_cases", "forging_uploads"]

FIRST_FORGED = 1000

# With one dtype and no parameters, so that its check is fast.
SCALE = '''"""Scale: twice the input."""

import torch
from warpcall_kernels import Problem, Sample, Size


def scale(x):
    return x * 2


def inputs(dtype, rows):
    return {"x": Sample((rows, 4), dtype)}


PROBLEM = Problem(
    reference=scale,
    inputs=inputs,
    sizes=(Size("rows", "number of rows", 8, minimum=1),),
    dtypes=(torch.float32,),
)
'''
THRICE = SCALE.replace("x * 2", "x * 3")

_FORGE = """
import os, struct


def forge(payload):
    for fd in range(3, 1024):
        try:
            os.write(fd, struct.pack("<I", len(payload)) + payload)
        except OSError:
            pass
    os._exit(0)

"""


def forging_uploads(payload: bytes) -> str:
    """A source that answers for its check when it is imported."""
    return f"{SCALE}{_FORGE}\nforge({payload!r})\n"


def forging_cases(payloads: Sequence[str]) -> str:
    """A problem that answers for the check of a case with FIRST_FORGED rows, and so on.

    Args:
        payloads: expressions of its answers.
    """
    source = SCALE.replace("\n\ndef scale", f"{_FORGE}\ndef scale")
    forge = f"""    forged = {", ".join(payloads)},
    if {FIRST_FORGED} <= rows < {FIRST_FORGED} + len(forged):
        forge(forged[rows - {FIRST_FORGED}])
"""
    return source.replace('    return {"x"', f'{forge}    return {{"x"')
