"""The check that a large JSON body is flat, which holds the event loop for a few ms at most."""

from __future__ import annotations

import json

import pytest

from warpcall import InvalidInput
from warpcall_bench.json_body import MAX_MEMBERS, check_flat


@pytest.mark.parametrize(
    "value",
    [
        {"a": "b"},
        {"op": 'quotes " and \\ and \n', "private": True, "name": None, "x": False},
        {"source": 'def f():\n    return {"a": [1, 2], "b": "}"}\n', "a": "é\u2028"},
        {str(number): "" for number in range(MAX_MEMBERS)},
    ],
)
@pytest.mark.parametrize("form", [{}, {"indent": 3}, {"ensure_ascii": False}])
def test_a_flat_object_passes(value: dict[str, object], form: dict[str, bool]) -> None:
    check_flat(json.dumps(value, **form).encode())  # type: ignore[arg-type]
    check_flat(b" \r\n" + json.dumps(value).encode() + b"\t ")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'"a"',
        b'{"a": 1}',
        b'{"a": []}',
        b'{"a": {}}',
        b'{"a": "b"',
        b'{"a": "b",}',
        b'{"a": "b"}}',
        b'{"a": "b"} {"a": "b"}',
        b'{"a": "b" "c": "d"}',
        b'{"a": "b", "a": "c"}',
        b'{"a": NaN}',
        b"{'a': 'b'}",
        b'{"a": "\\',
        b'{"' + b"a" * 100 + b'": "b"}',
        json.dumps({str(number): "" for number in range(MAX_MEMBERS + 1)}).encode(),
        b"\x7fELF\x02\x01\x00",
        b"[" * 500_000,
        b'{"a":[' + b"[]," * 100_000 + b"1]}",
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="body must be a JSON object") as caught:
        check_flat(body)

    assert caught.value.field == "body"
