"""PNG and JPEG files as inputs and outputs of `warpcall run`, and small outputs as text."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.client.command import Command
from warpcall._cli import files

PHOTO = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(name: str, array: np.ndarray = PHOTO) -> str:
    Image.fromarray(array).save(name)
    return name


@pytest.mark.parametrize(
    ("array", "dims"),
    [(PHOTO, "1,0,2"), (PHOTO[..., 0], "1,0"), (np.concatenate([PHOTO] * 2, 2)[..., :4], "1,0,2")],
    ids=["RGB", "grey", "RGBA"],
)
def test_an_image_is_transposed(array: np.ndarray, dims: str, warpcall: Command) -> None:
    result = warpcall("run", "permute", saved("a.png", array), "--dims", dims, "-o", "b.png")

    assert (result.code, result.err) == (0, "")
    with Image.open("b.png") as image:
        np.testing.assert_array_equal(np.asarray(image), array.swapaxes(0, 1))


def test_a_jpeg_is_read_and_written(warpcall: Command) -> None:
    flat = np.full((8, 16, 3), 100, np.uint8)

    result = warpcall("run", "permute", saved("a.jpg", flat), "--dims", "1,0,2", "-o", "b.jpeg")

    assert (result.code, result.err) == (0, "")
    with Image.open("b.jpeg") as image:
        assert (image.format, image.size) == ("JPEG", (8, 16))
        assert np.abs(np.asarray(image).astype(int) - 100).max() < 4


def test_an_image_with_a_palette_is_read_as_rgb(warpcall: Command) -> None:
    Image.fromarray(PHOTO).convert("P").save("a.png")

    result = warpcall("run", "permute", "a.png", "--dims", "2,0,1", "-o", "b.npy")

    assert result.code == 0
    assert np.load("b.npy").shape == (3, 2, 5)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("a.png", "--dims", "2,0,1", "-o", "b.png"), 1,
         "b.png holds uint8 of (height, width) or (height, width, 3 or 4), got uint8 of (3, 2, 5)"),
        (("float.npy", "--dims", "0,1", "-o", "b.jpg"), 1, "got float32 of (2, 2)"),
        (("empty.npy", "--dims", "0,1", "-o", "b.png"), 1, "b.png must have at least one pixel"),
        (("text.png", "--dims", "0"), 1, "text.png is not a PNG or JPEG image"),
        (("cut.png", "--dims", "0"), 1, "cut.png cannot be read: "),
        (("none.png", "--dims", "0"), 1, "none.png: No such file or directory"),
        (("large.png", "--dims", "0"), 1, "must have at most 5 pixels, got 5 x 2"),
        (("a.gif", "--dims", "0"), 2, "a.gif must end in .npy, .safetensors, .png, .jpg, .jpeg"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_one_line(
    words: tuple[str, ...],
    code: int,
    message: str,
    warpcall: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if words[0] == "large.png":
        monkeypatch.setattr(files, "MOST_PIXELS", 5)
    for name in ("a.png", "large.png", "cut.png"):
        saved(name)
    Path("cut.png").write_bytes(Path("a.png").read_bytes()[:45])
    Path("text.png").write_text("hello")
    np.save("float.npy", np.zeros((2, 2), np.float32))
    np.save("empty.npy", np.zeros((0, 2), np.uint8))

    result = warpcall("run", "permute", *words)

    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
    assert message in result.err
    assert not Path("b.png").exists()
    assert not Path("b.jpg").exists()


def test_without_pillow_the_error_says_what_to_install(
    warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)

    result = warpcall("run", "permute", "a.png", "--dims", "1,0,2")

    assert (result.code, result.out) == (2, "")
    assert result.err == "warpcall: a.png is an image, which takes Pillow: pip install pillow\n"


def test_a_small_output_is_printed_as_a_whole_and_a_large_one_is_not(warpcall: Command) -> None:
    np.save("small.npy", np.array([[1, 2], [3, 4]], np.int32))
    np.save("large.npy", np.zeros((8, 9), np.int32))

    small = warpcall("run", "permute", "small.npy", "--dims", "1,0")
    large = warpcall("run", "permute", "large.npy", "--dims", "1,0")

    assert "\nout =\n[[1 3]\n [2 4]]\n" in small.out
    assert "int32" in small.out
    assert "out =" not in large.out
