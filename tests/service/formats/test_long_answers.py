"""Others are served while long answers are written as JSON."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.service.requests import PERMUTE, header, tensor, well


@pytest.mark.slow
def test_others_are_served_while_long_answers_are_written(http: httpx.Client) -> None:
    rows = 512 << 10
    content = header({"x": tensor("U8", [rows, 1], 0, rows)}) + b"1" * rows
    headers = {"content-type": "application/vnd.safetensors", "accept": "application/json"}
    url = f"{http.base_url}{PERMUTE}?dims=0,1"

    with ThreadPoolExecutor(4) as pool:
        answers = [
            pool.submit(httpx.post, url, content=content, headers=headers, timeout=60)
            for _ in range(4)
        ]
        served = 0
        while not all(answer.done() for answer in answers):
            served += well(http).status_code == 200

    assert served > 4
    assert [len(answer.result().json()["outputs"]["out"]["data"]) for answer in answers] == [
        rows
    ] * 4
