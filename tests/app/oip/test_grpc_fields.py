"""Bytes of tensors in messages of protobuf: taken out without a copy, and put in."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from warpcall_service.oip.grpc import inference_pb2 as pb
from warpcall_service.oip.grpc.raw_fields import Malformed, field, take_out

NUMBER = 7


def message(name: str, shape: list[int], value: float, texts: list[str]) -> Any:
    """A message with fields of all types: of a length, varints, 4 and 8 bytes."""
    request = pb.ModelInferRequest(model_name=name, outputs=[{"name": text} for text in texts])
    request.parameters["p"].double_param = value
    request.inputs.add(shape=shape).contents.fp32_contents.append(value)
    return request


@given(
    st.text(max_size=200),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=5),
    st.floats(width=32, allow_nan=False),
    st.lists(st.text(max_size=20), max_size=4),
    st.lists(st.binary(max_size=300), max_size=4),
    st.data(),
)
def test_they_come_out_as_they_went_in(
    name: str,
    shape: list[int],
    value: float,
    texts: list[str],
    raw: list[bytes],
    data: st.DataObject,
) -> None:
    request = message(name, shape, value, texts)
    encoded = request.SerializeToString()
    before = data.draw(st.integers(0, len(raw)))
    pieces = [b"".join(field(NUMBER, [one])) for one in raw]
    # Fields may come in any order: some before all others.
    whole = b"".join((*pieces[:before], encoded, *pieces[before:]))

    rest, taken = take_out(memoryview(whole), NUMBER)

    assert rest == encoded
    assert [bytes(one) for one in taken] == raw
    assert pb.ModelInferRequest.FromString(whole).model_name == name, "protobuf reads it, too"


def test_a_tensor_is_not_copied() -> None:
    whole = b"".join(field(NUMBER, [b"ab", b"cd"]))

    _, (taken,) = take_out(memoryview(whole), NUMBER)

    assert taken.obj is whole
    assert bytes(taken) == b"abcd"


@given(st.binary(max_size=60))
def test_whatever_comes_is_taken_or_refused(data: bytes) -> None:
    try:
        rest, taken = take_out(memoryview(data), NUMBER)
    except Malformed:
        return
    assert len(rest) + sum(map(len, taken)) <= len(data)
    with contextlib.suppress(DecodeError):
        pb.ModelInferRequest.FromString(rest)


@pytest.mark.parametrize(
    "data", [b"\x3a", b"\x3a\x05abcd", b"\x3a" + b"\xff" * 11, b"\x0b", b"\x0d\x00", b"\x09\x00"]
)
def test_what_ends_early_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        take_out(memoryview(data), NUMBER)


def test_a_number_may_have_ten_bytes() -> None:
    shape = message("m", [-1], 0.0, []).inputs[0].SerializeToString()

    assert b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" in shape
    assert take_out(memoryview(shape), NUMBER) == (shape, [])
