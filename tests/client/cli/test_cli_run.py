"""`warpcall run`: files in, files out, options of the op, and what it refuses."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from tests.client.command import WARPCALL, Command
from tests.client.scripted_ops import OpsServer

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
GRADIENTS = {
    "grad_output": torch.ones(1, 2, 3),
    "x": torch.ones(1, 2, 3),
    "weight": torch.ones(1, 2),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new working folder with x.npy and the inputs of conv-backward."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    safetensors.torch.save_file(GRADIENTS, "in.safetensors")


def test_an_array_comes_back_as_an_array(warpcall: Command) -> None:
    result = warpcall("run", "permute", "x.npy", "--dims", "2,0,1", "-o", "y.npy")

    y = np.load("y.npy")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (y.dtype, y.flags.c_contiguous) == (X.dtype, True)
    np.testing.assert_array_equal(y, X.transpose(2, 0, 1))


@pytest.mark.parametrize(
    "x",
    [
        np.float64(3.5),
        np.zeros((0, 3), np.int8),
        np.array([True, False, True]),
        np.arange(4, dtype=np.complex64),
        np.asfortranarray(np.arange(6, dtype=np.uint16).reshape(2, 3)),
        np.arange(6, dtype=">i4").reshape(3, 2),
        np.arange(3, dtype=np.float16),
    ],
    ids=lambda x: f"{x.dtype.str}{list(x.shape)}",
)
def test_every_kind_of_array_goes_through_files(x: Any, warpcall: Command) -> None:
    np.save("x.npy", x)
    dims = ",".join(map(str, range(x.ndim)))

    result = warpcall("run", "permute", "x.npy", f"--dims={dims}", "-o", "y.npy")

    y = np.load("y.npy")
    assert (result.code, result.err) == (0, "")
    assert (y.dtype, y.shape) == (x.dtype.newbyteorder("="), x.shape)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool]
)
def test_dtypes_that_npy_lacks_go_through_safetensors(
    dtype: torch.dtype, warpcall: Command
) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    safetensors.torch.save_file({"x": x}, "x.safetensors")

    result = warpcall("run", "permute", "x.safetensors", "--dims", "1,0", "-o", "y.safetensors")

    out = safetensors.torch.load_file("y.safetensors")["out"]
    assert (result.code, result.err) == (0, "")
    assert out.dtype == dtype
    assert out.view(torch.uint8).tolist() == x.T.contiguous().view(torch.uint8).tolist()


def test_a_dtype_that_npy_lacks_is_not_written_as_something_else(warpcall: Command) -> None:
    safetensors.torch.save_file({"x": torch.ones(2, dtype=torch.bfloat16)}, "x.safetensors")

    result = warpcall("run", "permute", "x.safetensors", "--dims", "0", "-o", "y.npy")

    assert result.code == 1
    assert result.err == "warpcall: y.npy cannot hold bfloat16: use a .safetensors file\n"
    assert not Path("y.npy").exists()


def test_several_outputs_share_a_safetensors_file(warpcall: Command) -> None:
    result = warpcall("run", "conv-backward", "in.safetensors", "--out", "grads.safetensors")

    assert (result.code, result.err) == (0, "")
    assert safetensors.numpy.load_file("grads.safetensors").keys() == {"grad_x", "grad_weight"}


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_several_outputs_go_into_files_of_their_names(suffix: str, warpcall: Command) -> None:
    out = "d_{name}" + suffix
    result = warpcall("run", "conv-backward", "in.safetensors", "--bias", "-o", out)

    assert (result.code, result.err) == (0, "")
    assert {path.name for path in Path().glob("d_*")} == {
        f"d_{name}{suffix}" for name in ("grad_x", "grad_weight", "grad_bias")
    }


def test_several_outputs_for_one_array_file_are_refused_before_the_call(warpcall: Command) -> None:
    result = warpcall("run", "conv-backward", "in.safetensors", "-o", "y.npy")

    assert result.code == 2
    assert "y.npy holds one tensor, but the outputs are grad_x, grad_weight" in result.err
    assert warpcall.server.seen.calls == 0


def test_without_a_file_a_summary_is_printed(warpcall: Command) -> None:
    result = warpcall("run", "permute", "x.npy", "--dims", "2,0,1")

    title, row, name, *_, where = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert title.split() == ["output", "dtype", "shape", "first", "values"]
    assert row.split(maxsplit=2)[:2] == ["out", "float32"]
    assert "[4, 2, 3]  0.0, 4.0, 8.0, 12.0, ..." in row
    assert name == "out ="
    assert where == "on cuda:0 (NVIDIA H200): queue 0.5 ms, kernel 2 ms"


@pytest.mark.parametrize("arguments", [[], ["-o", "y.npy"]])
def test_a_summary_can_be_had_as_json(arguments: list[str], warpcall: Command) -> None:
    result = warpcall("run", "permute", "x.npy", "--dims", "0,1,2", "--json", *arguments)

    assert json.loads(result.out) == {
        "outputs": {
            "out": {"dtype": "F32", "shape": [2, 3, 4], "first": ["0.0", "1.0", "2.0", "3.0"]}
        },
        "device": "cuda:0 (NVIDIA H200)",
        "timing_ms": {"queue": 0.5, "kernel": 2.0},
        "request_id": "r9",
    }


def test_run_goes_to_the_address_on_the_line(warpcall: Command) -> None:
    with OpsServer() as other:
        result = warpcall("run", "permute", "x.npy", "--dims", "0,1,2", "--url", other.url)

        assert (result.code, other.seen.calls) == (0, 1)
    assert warpcall.server.targets == []


def test_the_server_hears_how_long_the_call_may_take(warpcall: Command) -> None:
    result = warpcall("run", "permute", "x.npy", "--dims", "0,1,2", "--timeout-s", "500")

    assert result.code == 0
    assert 490 < float(warpcall.server.seen.headers["x-warpcall-timeout"]) < 500


@pytest.mark.parametrize(
    ("arguments", "params"),
    [
        (["permute", "x.npy", "--dims", "2,0,1"], {"dims": [2, 0, 1]}),
        (["permute", "--dims", "-1,0,1", "x.npy"], {"dims": [-1, 0, 1]}),
        (["permute", "x.npy", "--dims=2, 0, 1"], {"dims": [2, 0, 1]}),
        (["isin", "x.npy", "x.npy", "--invert"], {"invert": True}),
        (["isin", "x.npy", "--no-invert", "x.npy"], {"invert": False}),
        (["isin", "x.npy", "x.npy", "--invert=no"], {"invert": False}),
        (
            ["isin", "x.npy", "x.npy", "--assume-unique", "--invert=TRUE"],
            {"assume_unique": True, "invert": True},
        ),
        (["masked-softmax", "x.npy", "--scale", "-0.5"], {"scale": -0.5}),
        (["masked-softmax", "x.npy", "--scale=1e-3", "--causal"], {"scale": 0.001, "causal": True}),
        (["conv", "x.npy", "x.npy", "--padding-l", "2"], {"padding_l": 2}),
        (["conv", "x.npy", "x.npy", "--padding_l=2"], {"padding_l": 2}),
        (["transpose-add", "x.npy", "x.npy"], {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_options_of_the_op_arrive_as_its_parameters(
    arguments: list[str], params: dict[str, Any], warpcall: Command
) -> None:
    result = warpcall("run", *arguments)

    assert (result.code, result.err) == (0, "")
    assert warpcall.server.seen.params == params


def test_files_fill_the_inputs_in_order_around_those_named(warpcall: Command) -> None:
    np.save("lengths.npy", np.arange(2))
    np.save("mask.npy", np.zeros(4, bool))

    result = warpcall("run", "masked-softmax", "lengths=lengths.npy", "x.npy", "mask.npy")

    seen = {name: list(tensor.shape) for name, tensor in warpcall.server.seen.inputs.items()}
    assert (result.code, seen) == (0, {"x": [2, 3, 4], "mask": [4], "lengths": [2]})


def test_a_file_may_have_an_equals_sign_in_its_name(warpcall: Command) -> None:
    np.save("k=3.npy", X)

    result = warpcall("run", "permute", "k=3.npy", "--dims", "0,1,2")

    assert (result.code, result.err) == (0, "")
    assert list(warpcall.server.seen.inputs) == ["x"]


def test_an_existing_file_is_replaced_and_keeps_its_mode(warpcall: Command) -> None:
    Path("y.npy").write_text("old")
    Path("y.npy").chmod(0o640)

    result = warpcall("run", "permute", "x.npy", "--dims", "0,1,2", "-o", "y.npy")

    assert result.code == 0
    np.testing.assert_array_equal(np.load("y.npy"), X)
    assert stat.S_IMODE(Path("y.npy").stat().st_mode) == 0o640
    assert {path.name for path in Path().iterdir()} == {"in.safetensors", "x.npy", "y.npy"}


def test_a_file_stays_as_it_was_if_the_call_fails(warpcall: Command) -> None:
    Path("y.npy").write_text("old")

    result = warpcall("run", "permute", "x.npy", "--dims", "0", "-o", "y.npy")

    assert result.code == 1
    assert result.err == "warpcall: dims must name each of the 3 dims of x\n"
    assert Path("y.npy").read_text() == "old"


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_pipe_is_written_to(suffix: str, warpcall: Command) -> None:
    pipe = Path(f"pipe{suffix}")
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()

    result = warpcall("run", "permute", "x.npy", "--dims", "0,1,2", "-o", pipe)
    reader.join(10)
    Path(f"file{suffix}").write_bytes(got[0])

    assert (result.code, result.err, pipe.is_fifo()) == (0, "", True)
    if suffix == ".npy":
        np.testing.assert_array_equal(np.load("file.npy"), X)
    else:
        out = safetensors.numpy.load_file("file.safetensors")["out"]
        np.testing.assert_array_equal(out, X)


@pytest.mark.parametrize("name", ["y.npy", "y.safetensors"])
def test_a_file_stays_as_it_was_if_the_new_one_does_not_fit(name: str, warpcall: Command) -> None:
    np.save("large.npy", np.zeros(1 << 20, np.uint8))
    Path(name).write_text("old")
    before = sorted(Path().iterdir())
    url = warpcall.server.url
    arguments = ["run", "permute", "large.npy", "--dims", "0", "-o", name, "--url", url]

    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *WARPCALL, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (1, "warpcall: File too large\n")
    assert Path(name).read_text() == "old"
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_full_disk_is_one_line(suffix: str, warpcall: Command) -> None:
    Path(f"full{suffix}").symlink_to("/dev/full")

    result = warpcall("run", "permute", "x.npy", "--dims", "0,1,2", "-o", f"full{suffix}")

    assert (result.code, result.err) == (1, "warpcall: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("permute x.npy", 2, "permute needs --dims N,N,..."),
        ("permute x.npy --dims", 2, "--dims needs a value"),
        ("permute x.npy --dims a", 2, "--dims must be integers such as 1,0, got 'a'"),
        ("permute x.npy --dims 0 --dims 1", 2, "--dims is given twice"),
        ("permute x.npy --size 2", 2, "permute has no option --size, it takes --dims N,N,..."),
        ("permute x.npy -d 2", 2, "permute has no option -d, it takes --dims N,N,..."),
        ("transpose-add x.npy --dims 0", 2, "transpose-add has no option --dims, it takes none"),
        ("conv x.npy --padding-l 1.5", 2, "--padding-l must be an integer, got '1.5'"),
        ("masked-softmax x.npy --scale nan", 2, "--scale must be a finite number, got 'nan'"),
        ("isin x.npy --invert=maybe", 2, "--invert must be true or false, got 'maybe'"),
        ("permute x.npy x.npy --dims 0", 2, "x.npy is one file too many: inputs x"),
        ("permute x=x.npy x=x.npy --dims 0", 2, "the input x is given twice"),
        ("permute x=in.safetensors --dims 0", 2, "x=in.safetensors must hold one tensor, got"),
        ("permute x.txt --dims 0", 2, "x.txt must end in .npy, .safetensors, .png"),
        ("permute - --dims 0", 2, "- must end in .npy, .safetensors, .png"),
        ("permute none.npy --dims 0", 1, "none.npy: No such file or directory"),
        ("permute none.safetensors --dims 0", 1, "none.safetensors: No such file or directory"),
        ("permute x.npy --dims 0 -o y.txt", 2, "y.txt must end in .npy, .safetensors, .png"),
        ("permute x.npy --dims 0 -o none/y.npy", 2, "none is not a folder"),
        ("permute x.npy --dims 0 --timeout-s 0", 1, "timeout_s must be above 0 and at most"),
        ("sort x.npy", 1, "there is no op 'sort'"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    arguments: str, code: int, message: str, warpcall: Command
) -> None:
    result = warpcall("run", *arguments.split())

    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"warpcall: {message}")
    assert result.err.count("\n") == 1
    assert warpcall.server.seen.calls == 0


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npy", b""),
        ("x.npy", b"hello, world"),
        ("x.npy", pickle.dumps(print)),
        ("x.npy", npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}")),
        ("x.npy", npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99,)}")),
        ("x.npy", npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 30 + b",)}")),
        ("x.npy", npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,)}")),
        ("x.npy", npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (((")),
        ("x.npy", npy(b"{'descr': '<f4', b'fortran_order': False, 'shape': (1,)}")),
        ("x.npy", npy(b"'''")),
        ("x.safetensors", b""),
        ("x.safetensors", bytes(100)),
        ("x.safetensors", b"\xff" * 100),
        ("x.safetensors", b"\x02" + bytes(7) + b"[]"),
    ],
)
def test_a_damaged_file_is_one_line(name: str, content: bytes, warpcall: Command) -> None:
    Path(name).write_bytes(content)

    result = warpcall("run", "permute", name, "--dims", "0")

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("warpcall: ")
    assert result.err.count("\n") == 1
    assert warpcall.server.seen.calls == 0


def test_an_option_of_an_unknown_kind_is_reported_as_such(warpcall: Command) -> None:
    declared = {"name": "dims", "kind": "text", "required": False, "doc": "which"}
    warpcall.server.declared["permute"]["params"] = [declared]

    listed, run = warpcall("kernels"), warpcall("run", "permute", "x.npy", "--dims", "0")

    assert "[--dims ...]" in listed.out
    assert run.code == 2
    assert run.err == "warpcall: --dims is of a kind that only a newer warpcall can read\n"
