"""The page that runs one op on files or typed values."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.forms.conftest import FormsApp
from tests.forms.fields import MARKUP, errors_of, fields_of
from tests.waiting import until
from warpcall import wire

SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def send(
    lab: FormsApp, op: str = "permute", files: dict[str, bytes] | None = None, **fields: str
) -> httpx.Response:
    """Send the form of an op; "__" in a name stands for "."."""
    given = {name.replace("__", "."): text for name, text in fields.items()}
    parts = {name: ("a.npy", content) for name, content in (files or {"none": b""}).items()}
    return lab.browsers["call"].post("/call", params={"op": op}, data=given, files=parts)


def link(page: httpx.Response, download: str) -> bytes:
    """What a link of the page holds."""
    found = re.search(rf'download="{download}" href="data:[^,]*;base64,([^"]*)"', page.text)
    assert found is not None, errors_of(page)
    return base64.b64decode(found[1])


@pytest.mark.parametrize("array", [SQUARE, np.asfortranarray(SQUARE), SQUARE.astype(np.uint8)])
def test_an_op_runs_on_a_file(lab: FormsApp, array: Any) -> None:
    page = send(lab, files={"x": npy(array)}, params__dims="1,0")

    assert page.status_code == 200, errors_of(page)
    answer = np.load(io.BytesIO(link(page, "out.npy")))
    assert answer.dtype == array.dtype
    assert np.array_equal(answer, array.T)
    whole = link(page, "permute.safetensors")
    nbytes = wire.header_nbytes(whole[:8])
    tensors = wire.decode_header(whole[8 : 8 + nbytes]).tensors
    assert [(one.name, one.shape) for one in tensors] == [("out", (3, 2))]
    for stage in ("upload", "waiting for the device", "copy to the device", "kernel", "copy back"):
        assert re.search(rf"{stage} <b>\d+\.\d+ ms</b>", page.text)


def test_an_op_with_several_inputs_runs_on_typed_values(lab: FormsApp) -> None:
    added = send(lab, "transpose-add", values__a="[[1, 2], [3, 4]]", values__b="[[0, 0], [0, 10]]")
    masked = send(
        lab,
        "masked-softmax",
        values__x="[[0, 0, 5]]",
        values__lengths="[2]",
        params__causal="false",
        params__scale="2",
    )

    assert np.load(io.BytesIO(link(added, "out.npy"))).tolist() == [[1, 3], [2, 14]]
    assert np.load(io.BytesIO(link(masked, "out.npy"))).tolist() == [[0.5, 0.5, 0]]


@pytest.mark.parametrize(
    ("files", "fields", "field", "text"),
    [
        ({}, {}, "x", "permute needs x"),
        ({"x": npy(SQUARE)}, {"values.x": "[1]"}, "x", "both came"),
        ({"x": b"text"}, {}, "x", ".npy file"),
        ({"x": npy(SQUARE)[:20]}, {}, "x", "ends in its header"),
        ({"x": npy(SQUARE)[:-1]}, {}, "x", "must have 24 bytes"),
        ({"x": npy(SQUARE) + b"0"}, {}, "x", "must have 24 bytes"),
        ({"x": npy(np.array([object()], dtype=object))}, {}, "x", "pickle"),
        ({}, {"values.x": "[1, [2]]"}, "x", "equal lengths"),
        ({}, {"values.x": "{}"}, "x", "lists of numbers"),
        ({}, {"values.x": "[" * 60_000}, "x", "lists of numbers"),
        ({}, {"values.x": "1" * 70_000}, "x", "at most 65536"),
        ({}, {"values.x": MARKUP}, "x", MARKUP[:8]),
        ({"x": npy(SQUARE)}, {"params.dims": ""}, "dims", "dims"),
        ({"x": npy(SQUARE)}, {"params.dims": "1,1"}, "dims", "dims must name"),
        ({"x": npy(SQUARE)}, {"params.dims": MARKUP}, "dims", "integers"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(
    lab: FormsApp, files: dict[str, bytes], fields: dict[str, str], field: str, text: str
) -> None:
    page = send(lab, files=files, **{"params.dims": "1,0", **fields})

    assert page.status_code == 422
    assert text in errors_of(page)[field], errors_of(page)
    assert MARKUP not in page.text
    kept = fields_of(page)
    assert all(kept.get(name) == [value] for name, value in fields.items())


def test_a_call_from_a_page_has_bounds(lab: FormsApp) -> None:
    large = np.zeros(1 << 20, np.float32)
    wide = send(lab, files={"x": npy(np.zeros((1100, 1000), np.float32))}, params__dims="1,0")
    too_long = send(lab, files={"x": npy(np.zeros(9 << 20, np.uint8))}, params__dims="0")
    fits = send(lab, files={"x": npy(large)}, params__dims="0")
    unknown = send(lab, op=MARKUP)

    assert (wide.status_code, too_long.status_code) == (413, 413)
    assert "use a client" in errors_of(wide)[""]
    assert np.array_equal(np.load(io.BytesIO(link(fits, "out.npy"))), large)
    assert (unknown.status_code, MARKUP in unknown.text) == (404, False)


def test_a_call_counts_as_one_of_the_op(lab: FormsApp) -> None:
    send(lab, "isin", values__elements="[1, 2]", values__test_elements="[2]")

    def counted() -> bool:
        rows = lab.admin.get("/v1/usage", params={"user": "call"}).json()["usage"]
        return any(row["op"] == "isin" for row in rows)

    until(counted)
