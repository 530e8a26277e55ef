"""The check of a large JSON body, which holds the event loop for a few ms at most."""

from __future__ import annotations

import json

import pytest

from warpcall import InvalidInput
from warpcall_bench.json_body import MAX_STRUCTURE_BYTES, check_structure


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"op": 'quotes " and \\ and \n', "private": True, "name": None, "x": False},
        {"source": 'def f():\n    return {"a": [1, 2], "b": "}"}\n', "a": "é\u2028"},
        {"source": "[]{}" * 60_000, "launches": {"launches": [{"grid": [1.5, "x"]}]}},
    ],
)
@pytest.mark.parametrize("form", [{}, {"indent": 3}, {"ensure_ascii": False}])
def test_an_object_with_long_texts_passes(value: dict[str, object], form: dict[str, bool]) -> None:
    check_structure(json.dumps(value, **form).encode())  # type: ignore[arg-type]
    check_structure(b" \r\n" + json.dumps(value).encode() + b"\t ")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"a"',
        b'{"a": "b"',
        b'{"a": "b",}',
        b'{"a": "b"} {"a": "b"}',
        b'{"a": "b", "a": "c"}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": NaN}',
        b"{'a': 'b'}",
        b'{"a": "\\',
        b"\x7fELF\x02\x01\x00",
        b"[" * 500_000,
        b'{"a":[' + b"[]," * 100_000 + b"1]}",
        b'{"a":[' + b'"",' * 100_000 + b"1]}",
        b'{"a":"b"' + b" " * MAX_STRUCTURE_BYTES + b"}",
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^body must ") as caught:
        check_structure(body)

    assert caught.value.field == "body"
