"""Profiles as pages show them, for tests: a text of Nsight Compute, and compile reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.service.artefacts.kept import keeping
from tests.service.databases import Database
from tests.service.stored import number
from tests.service.worker.fake_ncu import DETAILS
from warpcall_bench.artefacts.profiles import FILES
from warpcall_bench.artefacts.service import NewArtefact
from warpcall_bench.jobs import sanitized
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.events import ProfileMade
from warpcall_service.store.database import Store

NCU_TEXT = f"permute x=BF16[4096,4096] dims=1,0\nwarpcall, by Nsight Compute\n\n{DETAILS}"


def profile(file: str, implementation: str, position: int = 0) -> NewArtefact:
    """The artefact of a profile.

    Args:
        file: the end of its name, one of FILES.
    """
    kind, media_type = FILES[file]
    return NewArtefact(
        name=f"case-{position}.{implementation.replace('/', '-')}.{file}",
        kind=kind,
        media_type=media_type,
        position=position,
        implementation=implementation,
    )


def report(*kernels: dict[str, Any], **change: Any) -> bytes:
    """A compile report with these kernels as a job stores it."""
    fields = {
        "op": "permute",
        "implementation": "torch",
        "case": "permute x=BF16[4096,4096] dims=1,0",
        "gpu": "sm_90",
        "triton": "3.7.1",
        "ptxas": "12.9.86",
        "kernels": list(kernels),
        "failures": [],
        "stopped": "",
    }
    return json.dumps({**fields, **change}).encode()


def kernel(name: str, **change: Any) -> dict[str, Any]:
    """A kernel of a report."""
    text = "// a line of PTX\n" * 100
    return {
        "name": name,
        "config": "",
        "launches": 1,
        "grid": [128, 2, 1],
        "arguments": {"x_ptr": "*fp32, aligned"},
        "constants": {"TILE": "64"},
        "registers": 56,
        "spill_store_bytes": 8,
        "spill_load_bytes": 16,
        "stack_bytes": 40,
        "static_shared_bytes": 0,
        "dynamic_shared_bytes": 16_896,
        "warps": 4,
        "stages": 3,
        "ctas": 1,
        "resident_blocks": 9,
        "resident_warps": 36,
        "max_warps": 64,
        "limited_by": ["registers", "shared memory"],
        "texts": {"ptx": {"text": text, "nbytes": len(text), "cut": False}},
        **change,
    }


def add_profiles(store: Store, folder: Path, job_id: str, position: int, text: str) -> None:
    """Profiles of all forms of a case, in the data folder of a server.

    Args:
        text: in a profile, as the name of a kernel, and as an error.
    """
    here = keeping(Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)}), store)
    word = "_permute_columns" * 8  # longer than a telephone is wide
    kernels = (
        kernel(text, config="TILE: 64, num_warps: 4", launches=3),
        kernel(word, resident_blocks=8, resident_warps=32, limited_by=["blocks"]),
    )
    for new, content in (
        (profile("ncu.txt", "warpcall", position), f"{NCU_TEXT}{text} {word}\n".encode()),
        (profile("compiled.json", "ann/tiles", position), report(*kernels, failures=[text, word])),
        (profile("compiled.json", "torch", position), report()),
        (profile("compiled.json", "warpcall", position), b"{"),
        (profile("kernels.json", "warpcall", position), top(text, word)),
        (profile("trace.json", "warpcall", position), b"{}"),
        (profile("racecheck.txt", "ann/tiles", position), f"racecheck: {text} {word}".encode()),
    ):
        assert here.add(job_id, content, new) == ""
    here.fail(job_id, profile("ncu.txt", "torch", position), f"it raised {text} in {word}")
    here.artefacts._threads.close()
    said = f"racecheck: 1 hazard (1 error, 0 warnings), first: {text} {word}\n".encode()
    with store.write() as session:
        job = session.get_one(Job, number(store, job_id))
        for file in ("memcheck.txt", "racecheck.txt"):
            sanitized.store(session, job, ProfileMade(position, "warpcall", file, said, ""))


def top(*names: str, **change: Any) -> bytes:
    """The top kernels of a trace as a job stores them: each took 50 us in two launches.

    Args:
        change: of each kernel.
    """
    each = {"launches": 2, "total_us": 50.0, "mean_us": 25.0, "share": 1.0}
    fields = {
        "what": "kernels",
        "calls": 3,
        "total_us": 50.0 * len(names),
        "kernels": [{"name": name, **each, **change} for name in names],
        "others": 0,
        "position": None,
        "implementation": "",
    }
    return json.dumps(fields).encode()
