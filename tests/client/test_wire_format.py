"""What the SDK writes and reads, byte for byte against the safetensors library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warpcall import InvalidInput
from warpcall._arrays import NUMPY_DTYPES, Array, Kind, arrays_of, flatten, kind_of
from warpcall._body import decode, encode
from warpcall.dtypes import ITEMSIZE
from warpcall.wire import TensorInfo, header_nbytes

NUMPY: Kind[Array] = Kind()
TORCH: Kind[Tensor] = Kind(torch.device("cpu"))
TORCH_DTYPES = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.int16): torch.int16,
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(np.complex64): torch.complex64,
}
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda name: name != "__metadata__"
)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    """Named tensors of every dtype, 0-dim, empty and strided ones among them."""
    return draw(st.dictionaries(names, one_tensor(), max_size=4))


@st.composite
def one_tensor(draw: st.DrawFn) -> Tensor:
    code = draw(st.sampled_from(sorted(NUMPY_DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    nbytes = math.prod(shape) * ITEMSIZE[code]
    data = draw(st.binary(min_size=nbytes, max_size=nbytes))
    if code == "BOOL":
        data = bytes(byte & 1 for byte in data)
    flat = np.frombuffer(bytearray(data), np.uint8)
    tensor = TORCH.build(flat, TensorInfo("", code, shape))
    layout = draw(st.sampled_from(["as is", "transposed", "strided", "expanded"]))
    if layout == "transposed":
        return tensor.permute(tuple(range(tensor.ndim))[::-1])
    if layout == "strided" and tensor.ndim:
        return tensor[..., ::2]
    if layout == "expanded":
        return tensor.expand(2, *tensor.shape)
    return tensor


def as_numpy(tensor: Tensor) -> Array:
    """A numpy array with a torch tensor's elements and strides, for every dtype of the wire."""
    code = flatten("x", tensor).info.dtype
    storage = tensor.untyped_storage()
    raw = bytes(storage)
    strides = [stride * tensor.itemsize for stride in tensor.stride()]
    offset = tensor.storage_offset() * tensor.itemsize
    return np.ndarray(tuple(tensor.shape), NUMPY_DTYPES[code], raw, offset, strides)


def sent(inputs: dict[str, Any], params: dict[str, Any] | None = None) -> bytes:
    return b"".join(encode(inputs, params or {}).slices())


@given(tensors())
@settings(deadline=None, max_examples=150)
def test_torch_bodies_are_those_of_the_library(given: dict[str, Tensor]) -> None:
    theirs = safetensors.torch.save({name: t.contiguous() for name, t in given.items()})

    assert sent(given) == theirs


@given(tensors())
@settings(deadline=None, max_examples=150)
def test_numpy_bodies_are_those_of_the_library(given: dict[str, Tensor]) -> None:
    theirs = safetensors.torch.save({name: t.contiguous() for name, t in given.items()})

    assert sent({name: as_numpy(t) for name, t in given.items()}) == theirs


@given(tensors())
@settings(deadline=None, max_examples=100)
def test_bodies_of_the_library_are_read(given: dict[str, Tensor]) -> None:
    theirs = safetensors.torch.save({name: t.contiguous() for name, t in given.items()})

    for kind in (NUMPY, TORCH):
        read: dict[str, Any] = decode(np.frombuffer(bytearray(theirs), np.uint8), kind)

        assert read.keys() == given.keys()
        for name, original in given.items():
            assert tuple(read[name].shape) == tuple(original.shape)
            assert flatten("x", read[name]).data.tobytes() == flatten("x", original).data.tobytes()


@given(tensors(), st.text(st.characters(exclude_categories=["Cs"])))
@settings(deadline=None, max_examples=50)
def test_parameters_travel_in_the_metadata(given: dict[str, Tensor], text: str) -> None:
    metadata = {"params": '{"dims":[1,0]}'}
    theirs = safetensors.torch.save({n: t.contiguous() for n, t in given.items()}, metadata)

    assert sent(given, {"dims": (1, 0)}) == theirs


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c8", ">u8", ">f2"])
def test_big_endian_arrays_are_swapped(dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)

    assert sent({"x": x}) == sent({"x": x.astype(x.dtype.newbyteorder("<"))})


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "reversed": lambda x: x[::-1, ::-1],
    "Fortran order": np.asfortranarray,
    "every other": lambda x: x[::2, 1::2],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "unaligned": lambda x: np.ndarray(x.shape, x.dtype, b"-" + x.tobytes(), offset=1),
    "one row": lambda x: x[1:2],
    "no rows": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.bool_, np.int16, ml_dtypes.bfloat16, np.complex64])
def test_numpy_arrays_of_any_layout_are_sent_in_c_order(dtype: npt.DTypeLike, layout: str) -> None:
    x = LAYOUTS[layout](np.arange(24).reshape(4, 6).astype(dtype))
    plain = torch.from_numpy(np.frombuffer(bytearray(x.tobytes("C")), np.uint8))
    theirs = plain.view(TORCH_DTYPES[np.dtype(dtype)]).reshape(x.shape)

    assert sent({"x": x}) == safetensors.torch.save({"x": theirs})


@pytest.mark.parametrize("name", ["\udcff", "a\ud800"], ids=ascii)
def test_a_name_that_utf_8_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="names of tensors must be Unicode text"):
        encode({name: np.zeros(1)}, {})


@pytest.mark.parametrize("value", [np.array(3.5), torch.tensor(3.5)])
def test_a_0_dim_tensor_stays_0_dim(value: Any) -> None:
    body = np.frombuffer(bytearray(sent({"x": value})), np.uint8)

    assert decode(body, kind_of({"x": value}))["x"].shape == ()


def test_a_conjugate_view_and_a_tensor_with_gradient_are_sent_as_their_values() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    w = torch.ones(2, requires_grad=True)

    assert flatten("z", z.conj()).data.tobytes() == z.conj().resolve_conj().numpy().tobytes()
    assert flatten("w", w * 2).data.tobytes() == np.full(2, 2, np.float32).tobytes()


def test_a_contiguous_array_is_not_copied() -> None:
    x = np.arange(1 << 16, dtype=np.float32)

    pieces = list(encode({"x": x}, {}).slices())

    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), x) for piece in pieces[1:])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(2, object), "x must have a dtype of uint64, .*, bool, got object"),
        (np.zeros(2, np.complex128), "got complex128"),
        (np.zeros(2, np.longdouble), "got float128"),
        (np.array(["a"]), "got <U1"),
        (np.zeros(2, "datetime64[s]"), "got datetime64"),
        (np.zeros(2, [("a", "f4")]), "x must have a dtype of"),
        (np.zeros(2, ml_dtypes.int4), "got int4"),
        (np.ma.masked_array([1.0], [True]), "must be a plain array, got a masked one"),
        (torch.zeros(2, dtype=torch.complex128), "got complex128"),
        (torch.zeros(2).to_sparse(), "must be a dense tensor, got a sparse_coo tensor"),
        (torch.zeros(2, device="meta"), "must be a dense tensor, got a meta tensor"),
        ([1.0, 2.0], r"got list: pass np.asarray\(x, dtype=...\)"),
        (3.0, r"got float: pass np.asarray\(x, dtype=...\)"),
        (np.float32(3.0), r"got float32: pass np.asarray\(x, dtype=...\)"),
        ("x.npy", "x must be a numpy array or a torch tensor, got str"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        encode({"x": value}, {})

    assert caught.value.field == "x"


@pytest.mark.parametrize(
    ("value", "other", "expected"),
    [
        (2, np.int32, np.int32),
        (300, np.uint8, np.int64),  # of which no uint8 is equal
        (-1, np.uint64, np.int64),
        (2, np.float32, np.int64),  # as lengths of rows of floats are
        (2.5, np.int32, np.float64),
        (2.5, np.float16, np.float16),
        (0.1, ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (1e300, np.float32, np.float32),
        (True, np.int32, np.bool_),
        ([1, 2], np.int16, np.int16),
        ((1, 70_000), np.int16, np.int64),
        ([[0.5, 1], [2, 3]], np.float32, np.float32),
        ([], np.int8, np.int8),
        (np.float64(0.1), np.float32, np.float64),
        (2**63, np.int64, np.uint64),
    ],
    ids=str,
)
def test_numbers_and_lists_take_the_dtype_beside_them_if_it_has_their_values(
    value: Any, other: npt.DTypeLike, expected: npt.DTypeLike
) -> None:
    for like in (np.zeros(2, other), torch.zeros(2, dtype=torch_dtype(np.dtype(other)))):
        made = arrays_of({"a": like, "b": value, "c": None})

        b = made["b"]
        assert type(b) is type(like)
        assert made["a"] is like
        assert made["c"] is None
        assert str(b.dtype).removeprefix("torch.") == np.dtype(expected).name
        assert tuple(b.shape) == np.shape(value)
        with np.errstate(over="ignore"):
            assert np.asarray(b.tolist()).tolist() == np.asarray(value, expected).tolist()


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    found = getattr(torch, dtype.name)
    assert isinstance(found, torch.dtype)
    return found


def test_lists_without_arrays_become_numpy_arrays() -> None:
    made = arrays_of({"a": [1, 2], "b": 0.5})

    assert (made["a"].dtype, made["b"].dtype) == (np.int64, np.float64)


@pytest.mark.parametrize("value", [[1, [2]], ["a"], [None], 2**64, [{1}], [1, "a"]], ids=str)
def test_lists_that_are_no_numbers_are_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInput, match="x must be a number or a list of numbers") as caught:
        arrays_of({"x": value})

    assert caught.value.field == "x"


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}, np.array([math.nan])])
def test_parameters_that_json_does_not_have_are_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInput, match="scale must be") as caught:
        encode({}, {"scale": value})

    assert caught.value.field == "scale"


def test_numpy_scalars_and_small_arrays_are_parameters() -> None:
    body = sent({}, {"dims": np.array([1, 0]), "scale": np.float32(0.5), "n": np.int64(3)})

    assert b'{\\"dims\\":[1,0],\\"scale\\":0.5,\\"n\\":3}' in body


def test_kinds_are_not_mixed_in_one_call() -> None:
    mixed: dict[str, Any] = {"a": np.zeros(2), "b": torch.zeros(2)}

    with pytest.raises(InvalidInput, match="b must be a numpy array as a is, got a torch tensor"):
        kind_of(mixed)


def test_a_tensor_cannot_take_the_name_of_the_metadata() -> None:
    with pytest.raises(InvalidInput, match="none named __metadata__"):
        encode({"__metadata__": np.zeros(1)}, {})


def read(body: bytes) -> dict[str, npt.NDArray[Any]]:
    return decode(np.frombuffer(body, np.uint8), NUMPY)


def read_or_refuse(body: bytes) -> None:
    try:
        arrays = read(body)
    except InvalidInput:
        return
    assert 8 + header_nbytes(body) + sum(a.nbytes for a in arrays.values()) == len(body)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_arbitrary_bytes_are_read_or_refused_but_never_worse(body: bytes) -> None:
    read_or_refuse(body)


@given(tensors(), st.data())
@settings(deadline=None, max_examples=100)
def test_a_damaged_body_is_read_or_refused_but_never_worse(
    given: dict[str, Tensor], data: st.DataObject
) -> None:
    body = bytearray(sent(given))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))

    read_or_refuse(bytes(body))


@given(tensors(), st.data())
@settings(deadline=None, max_examples=100)
def test_a_truncated_body_is_refused(given: dict[str, Tensor], data: st.DataObject) -> None:
    body = sent(given)

    with pytest.raises(InvalidInput):
        read(body[: data.draw(st.integers(0, len(body) - 1))])


def test_names_and_parameters_beyond_the_header_are_refused_before_they_are_sent() -> None:
    x = np.zeros(1, np.uint8)

    with pytest.raises(
        InvalidInput, match="parameters, must have at most 131072 bytes, got 200104"
    ) as a:
        encode({"x": x}, {"note": "y" * 200_000})
    with pytest.raises(InvalidInput, match="must have at most 4096 brackets, got 5007"):
        encode({"x": x}, {"lists": [[]] * 5000})

    assert a.value.field == "body"
