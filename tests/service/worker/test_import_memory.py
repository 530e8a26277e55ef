"""A worker on the CPU returns the memory that only its imports needed."""

from __future__ import annotations

import json
import subprocess
import sys

# Imports what a worker imports, and prints KB of libraries' pages that were never written, before and
# after these are returned; then it uses the libraries.
MEASURED = """
import json, re
import torch, triton
from warpcall_service.processes.imports import release_import_memory

def resident():
    found = {"r-xp": 0, "r--p": 0}
    for text in re.split(r"(?m)^(?=[0-9a-f]+-)", open("/proc/self/smaps").read())[1:]:
        head, sizes = text.partition("\\n")[::2]
        kb = dict(re.findall(r"(?m)^(\\w+): +(\\d+) kB", sizes))
        if "libtriton" in head and kb["Anonymous"] == "0":
            found[head.split()[1]] += int(kb["Rss"])
    return found

before = resident()
release_import_memory()
after = resident()
found = torch.isin(torch.arange(5), torch.tensor([1, 3])).tolist()
print(json.dumps([before, after, found, triton.next_power_of_2(5)]))
"""


def test_code_and_constant_data_of_libraries_are_returned_after_they_are_imported() -> None:
    said = subprocess.run(
        [sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True
    ).stdout

    before, after, found, size = json.loads(said)

    assert min(before.values()) > 10_000
    assert max(after.values()) < 2_000
    assert (found, size) == ([False, True, False, True, False], 8)
