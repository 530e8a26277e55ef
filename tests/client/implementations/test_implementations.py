"""Uploads, lists and deletions of implementations, by both clients."""

from __future__ import annotations

import linecache
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.client.flavours import Flavour
from tests.client.implementations.answers import ENVIRONMENT, SHIPPED
from tests.client.implementations.scripted_lab import LabServer
from warpcall import Client, InvalidInput, NotFound, TooLarge
from warpcall._body import json_body
from warpcall._jobs.parse import parse
from warpcall._jobs.source import MAX_SOURCE_BYTES, source_of
from warpcall.implementations import Environment

SOURCE = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"


@pytest.fixture
def lab() -> Iterator[LabServer]:
    with LabServer() as server:
        yield server


def permute(x: Any, dims: Any) -> Any:
    """A function that tests upload; its source is this file."""
    return x.permute(dims).contiguous()


def test_an_upload_is_added_listed_read_and_removed(
    lab: LabServer, flavour: Flavour, tmp_path: Path
) -> None:
    path = tmp_path / "my_permute.py"
    path.write_text(SOURCE)

    added, again, listed, details, environment, removed = flavour.ask(
        lab,
        lambda gpu: gpu.implementations.add("permute", path),
        lambda gpu: gpu.implementations.add("permute", str(path)),
        lambda gpu: gpu.implementations.list(op="permute", user="ann", limit=5),
        lambda gpu: gpu.implementations.get("ann/my_permute"),
        lambda gpu: gpu.implementations.environment(),
        lambda gpu: gpu.implementations.remove("ann/my_permute"),
    )

    assert (added.name, added.function, added.created) == ("ann/my_permute", "permute", True)
    assert (again.version, again.created) == (added.version, False)
    assert [one.name for one in listed.implementations] == [SHIPPED["name"], "ann/my_permute"]
    assert lab.targets[2].endswith("/v1/implementations?op=permute&user=ann&limit=5")
    assert (details.source, details.version) == (SOURCE, added.version)
    assert environment == parse(Environment, ENVIRONMENT, "an environment")
    assert removed is None
    with pytest.raises(NotFound, match="there is no implementation 'ann/my_permute'"):
        flavour.ask(lab, lambda gpu: gpu.implementations.get("ann/my_permute"))


def test_what_is_sent_names_only_what_was_given(lab: LabServer, tmp_path: Path) -> None:
    path = tmp_path / "fast.py"
    path.write_text(SOURCE)
    odd = tmp_path / "my permute (2).py"
    odd.write_text(SOURCE)
    sent = []

    with Client(lab.url) as gpu:
        for code, options in [
            (SOURCE, {}),
            (path, {}),
            (path, {"function": "permute"}),
            (path, {"function": "permute", "name": "best", "private": True}),
            (odd, {}),
        ]:
            gpu.implementations.add("permute", code, **options)  # type: ignore[arg-type]
            sent.append(lab.seen.params)

    plain = {"op": "permute", "source": SOURCE}
    assert sent == [
        plain,
        {**plain, "name": "fast"},
        {**plain, "function": "permute"},
        {**plain, "function": "permute", "name": "best", "private": True},
        plain,
    ]


def test_a_source_is_as_long_in_the_body_as_it_is_in_utf_8() -> None:
    """The server bounds the body by the bytes that a source may have."""
    source = "# é漢\n" * 1000

    assert json_body({"source": source}).nbytes <= len(source.encode()) + 1000 + 16


def test_a_function_is_sent_as_the_whole_file_that_defines_it(lab: LabServer) -> None:
    with Client(lab.url) as gpu:
        gpu.implementations.add("permute", permute)

    assert lab.seen.params["source"] == Path(__file__).read_text()
    assert lab.seen.params["function"] == "permute"
    assert "name" not in lab.seen.params


def test_a_function_of_a_notebook_is_found_though_its_cell_is_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = "/tmp/ipykernel_1/123.py"  # IPython gives cells such names, without making the files
    monkeypatch.setitem(
        linecache.cache, file, (len(SOURCE), None, SOURCE.splitlines(keepends=True), file)
    )

    source = source_of(_defined_in(file))

    assert (source.text, source.function, source.name) == (SOURCE, "permute", None)


def test_a_function_that_was_typed_in_says_what_to_do_instead() -> None:
    with pytest.raises(
        InvalidInput, match="write it to a file and give the path, or give the"
    ) as e:
        source_of(_defined_in("<stdin>"))

    assert e.value.field == "source"


def _defined_in(file: str) -> FunctionType:
    """The function of SOURCE, as if it stood in a file of this name."""
    names: dict[str, Any] = {}
    exec(compile(SOURCE, file, "exec"), names)  # noqa: S102  # SOURCE is above
    found = names["permute"]
    assert isinstance(found, FunctionType)
    return found


def test_a_function_that_a_file_does_not_have_under_its_name_is_refused() -> None:
    def inner() -> None: ...

    class Owner:
        def method(self) -> None: ...

    renamed = _defined_in(__file__)
    del renamed.__globals__["permute"]

    for function in (inner, Owner.method, lambda x: x, renamed):
        with pytest.raises(InvalidInput, match="under its own name at the top level of a file"):
            source_of(function)


def test_what_is_no_code_is_refused_by_its_type() -> None:
    for given, kind in [(3, "int"), (None, "NoneType"), (math.sqrt, "builtin"), (int, "type")]:
        with pytest.raises(InvalidInput, match=f"must be a path, a text .* got {kind}"):
            source_of(given)  # type: ignore[arg-type]


def test_a_function_has_its_own_name_only(lab: LabServer) -> None:
    with (
        Client(lab.url) as gpu,
        pytest.raises(InvalidInput, match="function must be absent where the source is given as"),
    ):
        gpu.implementations.add("permute", permute, function="other")

    assert lab.targets == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x = 1\ny = '\xff'\n", "my.py, line 2: source must be UTF-8, got the byte 0xff"),
        (b"x = 1\n\ny = '\0'\n", r"my.py, line 3: source must not have the character '\\x00'"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_its_line(
    data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "my.py"
    path.write_bytes(data)

    with pytest.raises(InvalidInput, match=message) as refused:
        source_of(path)

    assert refused.value.field == "source"


def test_a_text_that_utf_8_does_not_have_is_refused_by_its_line() -> None:
    with pytest.raises(InvalidInput, match=r"source, line 2: .* the character '\\ud800'"):
        source_of("x = 1\ny = '\ud800'\n")


def test_a_byte_order_mark_is_not_part_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "my.py"
    path.write_bytes(b"\xef\xbb\xbf" + SOURCE.encode())

    assert source_of(path).text == SOURCE


def test_source_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "my.py"
    path.write_bytes(b"#" * (MAX_SOURCE_BYTES - 1) + b"\n")
    wide = "#" + "é" * (MAX_SOURCE_BYTES // 2) + "\n"

    assert len(source_of(path).text) == MAX_SOURCE_BYTES
    with path.open("ab") as file:
        file.truncate(10 << 30)  # more than fits into memory
    for code in (path, wide):
        with pytest.raises(TooLarge, match="must have at most 256 KiB of source"):
            source_of(code)


def test_what_is_no_file_of_source_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(InvalidInput, match=f"{tmp_path}/pipe must be a file of source"):
        source_of(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match=f"{tmp_path}: pipe is no regular file"):
        source_of(tmp_path)
    with pytest.raises(FileNotFoundError):
        source_of(tmp_path / "absent.py")
