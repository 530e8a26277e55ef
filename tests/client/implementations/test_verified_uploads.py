"""Uploads of verified kernels: their languages and declarations, from both clients and the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.command import Command
from tests.client.flavours import Flavour
from tests.client.implementations.scripted_lab import LabServer, row
from warpcall import Client, InvalidInput

SOURCE = "def permute(x, dims):\n    return x\n"
LAUNCHES: dict[str, Any] = {
    "launches": [{"kernel": "turn", "grid": ["x.numel"], "block": [1], "arguments": ["x", "out"]}]
}
KERNEL = 'extern "C" __global__ void turn(const float* x, float* out) {}\n'
DECLARED = f"// a kernel\n/* warpcall-launches\n{json.dumps(LAUNCHES, indent=2)}\n*/\n{KERNEL}"
NOTHING: dict[str, Any] = {}
BENCH = ("bench", "permute", "--shape", "8x8", "--dtype", "fp32", "--dims", "1,0")


@pytest.fixture
def lab() -> Iterator[LabServer]:
    with LabServer() as server:
        yield server


@pytest.fixture
def warpcall(
    lab: LabServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    return Command(lab, monkeypatch, capsys)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file in Python, some in CUDA C++ and some declarations."""
    monkeypatch.chdir(tmp_path)
    contents = {
        "mine.py": SOURCE,
        "declared.cu": DECLARED,
        "bare.cu": KERNEL,
        "wrong.cu": f"\n/* warpcall-launches\n{{'launches': []}} */\n{KERNEL}",
        "list.cu": f"/* warpcall-launches [] */\n{KERNEL}",
        "twice.cu": DECLARED + DECLARED,
        "launches.json": json.dumps(LAUNCHES),
        "broken.json": '{\n"launches": ]}',
    }
    for name, text in contents.items():
        Path(name).write_text(text)
    return tmp_path


def sent(lab: LabServer) -> tuple[object, object, object]:
    """What the last upload said about verified kernels."""
    body = lab.seen.params
    return body.get("verified"), body.get("language"), body.get("launches")


def adding(code: str, options: dict[str, Any]) -> Callable[[Any], Any]:
    """A question for a client: to upload code for permute."""
    return lambda gpu: gpu.implementations.add("permute", code, **options)


def test_a_python_file_is_verified_where_that_is_asked_for(
    lab: LabServer, flavour: Flavour, files: Path
) -> None:
    found = []
    for options in (NOTHING, {"verified": True}, {"launches": LAUNCHES}):
        flavour.ask(lab, adding("mine.py", options))
        found.append(sent(lab))

    assert found == [(None, None, None), (True, None, None), (True, None, LAUNCHES)]


def test_cuda_source_is_verified_and_declares_its_launches(
    lab: LabServer, flavour: Flavour, files: Path
) -> None:
    other = {"launches": [{**LAUNCHES["launches"][0], "block": [64]}]}
    found = []
    for code, options in [
        ("declared.cu", NOTHING),
        ("declared.cu", {"launches": other}),
        ("bare.cu", {"launches": other}),
        (f"{DECLARED}\n", {"language": "cuda", "name": "text"}),
    ]:
        flavour.ask(lab, adding(code, options))
        found.append(sent(lab))

    assert found == [(True, "cuda", one) for one in (LAUNCHES, other, other, LAUNCHES)]
    assert (
        lab.seen.params["source"] == f"{DECLARED}\n"
    )  # so that lines of errors are those of the file
    assert [one["name"] for one in lab.uploads] == ["ann/declared", "ann/bare", "ann/text"]


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("bare.cu", "bare.cu is CUDA C++ and has no declaration of its launches: write it in a"),
        (
            "wrong.cu",
            "wrong.cu, line 3: the declaration of launches is no JSON: Expecting property",
        ),
        ("list.cu", "list.cu: the declaration of launches must be a JSON object"),
        (
            "twice.cu",
            f"twice.cu, line {DECLARED.count(chr(10)) + 2}: there may be one declaration of launches",
        ),
    ],
)
def test_cuda_source_without_a_declaration_is_refused_before_it_is_sent(
    file: str, error: str, lab: LabServer, warpcall: Command, files: Path
) -> None:
    with Client(lab.url) as gpu, pytest.raises(InvalidInput) as refused:
        gpu.implementations.add("permute", file)
    by_command = warpcall(*BENCH, "--mine", file)

    assert (refused.value.field, refused.value.detail[: len(error)]) == ("launches", error)
    assert by_command.code == 2
    assert by_command.err.startswith(f"warpcall: {error}")
    assert lab.uploads == []


def test_the_example_of_the_error_is_a_declaration(lab: LabServer, files: Path) -> None:
    with Client(lab.url) as gpu:
        with pytest.raises(InvalidInput) as refused:
            gpu.implementations.add("permute", "bare.cu")
        begin = refused.value.detail.index("/*")
        example = refused.value.detail[begin : refused.value.detail.index("*/") + 2]
        Path("bare.cu").write_text(f"{example}\n{KERNEL}")
        gpu.implementations.add("permute", "bare.cu")

    verified, language, launches = sent(lab)
    assert (verified, language) == (True, "cuda")
    assert isinstance(launches, dict)
    assert launches["launches"][0]["kernel"] == "scale"


@pytest.mark.parametrize(
    ("launches", "error"),
    [
        ([], "launches must be a mapping, got list"),
        ({"launches": [{1, 2}]}, "launches: Object of type set is not JSON serializable"),
        ({"a": float("nan")}, "launches: Out of range float values"),
        ({"a": "b" * 20_000}, "launches: a declaration of launches must have at most 16384 bytes"),
    ],
)
def test_launches_that_cannot_be_sent_are_refused(
    launches: Any, error: str, lab: LabServer, files: Path
) -> None:
    with Client(lab.url) as gpu, pytest.raises(InvalidInput) as refused:
        gpu.implementations.add("permute", "mine.py", launches=launches)

    assert refused.value.detail.startswith(error)
    assert lab.uploads == []


def test_commands_upload_verified_kernels(lab: LabServer, warpcall: Command, files: Path) -> None:
    lab.rows = [row("ann/mine")]
    found = []
    for words in (
        ("implementations", "add", "permute", "mine.py", "--verified"),
        ("implementations", "add", "permute", "mine.py", "--launches", "launches.json"),
        (*BENCH, "--mine", "mine.py", "--verified"),
        (*BENCH, "--mine", "declared.cu"),
        (*BENCH, "--mine", "bare.cu", "--launches", "launches.json"),
        ("check", "permute", "--mine", "mine.py", "--verified"),
    ):
        done = warpcall(*words)
        assert done.code in (0, 1), done.err
        found.append(sent(lab))

    assert found == [
        (True, None, None),
        (True, None, LAUNCHES),
        (True, None, None),
        (True, "cuda", LAUNCHES),
        (True, "cuda", LAUNCHES),
        (True, None, None),
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((*BENCH, "--verified"), "--verified and --launches need a file: --mine my_kernel.py"),
        (
            (*BENCH, "--mine", "mine.py", "--mine", "bare.cu", "--launches", "launches.json"),
            "--launches is for one file, got 2",
        ),
        (
            (*BENCH, "--mine", "mine.py", "--launches", "broken.json"),
            "broken.json, line 2: the declaration of launches is no JSON: Expecting value",
        ),
        ((*BENCH, "--mine", "mine.py", "--launches", "absent.json"), "absent.json"),
        (
            (*BENCH, "--mine", "declared.cu:turn"),
            "declared.cu: its declaration of launches names the kernels, so turn must be left out",
        ),
    ],
)
def test_wrong_options_for_verified_kernels_are_refused(
    words: tuple[str, ...], error: str, lab: LabServer, warpcall: Command, files: Path
) -> None:
    done = warpcall(*words)

    assert done.code == (1 if "absent" in error else 2)
    assert error in done.err
    assert lab.uploads == []
