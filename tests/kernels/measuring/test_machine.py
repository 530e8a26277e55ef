"""What is recorded of the machine and of the code that was measured."""

from __future__ import annotations

import json

from warpcall_kernels import measuring
from warpcall_kernels.measuring._machine import sources


def test_a_fingerprint_names_device_and_code(device: str) -> None:
    facts = measuring.fingerprint(device)

    assert json.dumps(facts)
    assert len(facts["kernels_sha256"]) == 64
    assert facts["device"] in measuring.environment_class(facts)
    other = {**facts, "host": "another", "python": "4"}
    assert measuring.environment_class(other) == measuring.environment_class(facts)


def test_the_hash_of_the_kernels_covers_their_folders_and_not_the_measuring() -> None:
    names = {name for name, _ in sources()}

    assert {"permute.py", "_transpose/plan.py", "_softmax/forward.py", "op/launch.py"} <= names
    assert not any(name.startswith("measuring/") for name in names)
