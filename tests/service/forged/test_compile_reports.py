"""Compile reports that an uploaded source forges: each is shown or refused, and no page fails."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.databases import Database
from tests.service.requests import log_of
from tests.service.uploads.requests import running_lab, uploaded

CASE: dict[str, Any] = {"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}
PAGE = "/compiled?op=permute&dtype=F32&shape=8x8&params.dims=1,0&implementation="
FORGES = """
import os, struct


def permute(x, dims):
    payload = {payload!r}
    for fd in range(3, 1024):
        try:
            os.write(fd, struct.pack("<I", len(payload)) + payload)
        except OSError:
            pass
    os._exit(0)
"""
NUMBERS = (
    *("registers", "spill_store_bytes", "spill_load_bytes", "stack_bytes", "static_shared_bytes"),
    *("dynamic_shared_bytes", "warps", "stages", "ctas", "resident_blocks", "resident_warps"),
)
TEXT = {"packed": base64.b64encode(zlib.compress(b"a\x1b\0b")).decode(), "nbytes": 4}
TEXTS = dict.fromkeys(("ttir", "ttgir", "ptx", "sass"), TEXT)


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = str(tmp_path_factory.mktemp("data"))
    with (
        running_lab(Database("sqlite", {"WARPCALL_DATA_DIR": folder}), "ann") as lab,
        lab.http("ann") as http,
    ):
        yield http
        assert "Traceback" not in log_of(lab.server)


def forged(number: int, few: int, most: int, texts: Any) -> str:
    """A source whose report has one kernel with these numbers and texts."""
    kernel = {
        "name": "k",
        "config": "",
        "launches": number,
        "grid": [number] * 3,
        "arguments": {"a": "b"},
        "constants": {},
        **dict.fromkeys(NUMBERS, few),
        "max_warps": most,
        "limited_by": ["registers"],
        "texts": texts,
    }
    answer = {"case": "permute x=F32[8,8] dims=1,0", "kernels": [kernel]}
    return FORGES.format(payload=json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("name", "number", "few", "most", "texts", "status"),
    [
        ("huge", (1 << 63) - 1, 1 << 31, 1, TEXTS, 200),
        ("zero", 0, 0, 1 << 31, TEXTS, 200),
        ("without-texts", 1, 1, 1, {}, 422),
        ("without-ptx", 1, 1, 1, {"sass": TEXT}, 422),
    ],
)
def test_a_forged_report_is_shown_or_refused(
    name: str, number: int, few: int, most: int, texts: Any, status: int, http: httpx.Client
) -> None:
    source = forged(number, few, most, texts)
    uploaded(http, source, name=name)

    answer = http.post(
        "/v1/compile-reports", json={"op": "permute", "case": CASE, "source": source}, timeout=120
    )
    page = http.get(f"{PAGE}ann/{name}", headers={"accept": "text/html"}, timeout=120)

    assert answer.status_code == status, answer.text
    assert page.status_code == 200
    assert page.text.rstrip().endswith("</html>")
    assert ("gave no valid" in page.text) is (status != 200)
    assert "\0" not in page.text
    assert "\x1b" not in page.text
