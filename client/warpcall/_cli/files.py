"""Reads and writes the .npy and .safetensors files of the command. It never loads a pickle."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warpcall._arrays import Array, Kind
from warpcall._body import decode, encode
from warpcall._extras.files import replacing
from warpcall.errors import InvalidInput, WarpcallError

SUFFIXES = (".npy", ".safetensors")
IMAGES = (".png", ".jpg", ".jpeg")  # with Pillow, the extra `images`
ONE_TENSOR = (".npy", *IMAGES)
MOST_PIXELS = 1 << 28  # of an image: 256 million, 0.8 GB as RGB
# The errors that numpy raises for a damaged header: its own, and those of the parsers that it uses.
DAMAGED = (ValueError, TypeError, OverflowError, EOFError, SyntaxError, tokenize.TokenError)
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
NAME = "{name}"  # in an output path, replaced by the name of the output


class UsageError(Exception):
    """The command line is wrong. The exit code is 2."""


def read_inputs(arguments: Sequence[str], declared: Sequence[str]) -> dict[str, Array]:
    """Load the tensors of an op.

    Args:
        arguments: "x.npy" or "x.png" (the next input without a tensor), "name=x.npy", or
            "x.safetensors" (all tensors in it, by their names). An image is (height, width,
            channel) of uint8, a grey one (height, width).
        declared: the names of the op's inputs, in order.

    Raises:
        UsageError: a file has another ending, or an input is given twice or has no place.
        WarpcallError: a file is damaged or cannot be read.
    """
    inputs: dict[str, Array] = {}
    unnamed = []
    for argument in arguments:
        name, path = _split(argument, declared)
        if name is None and path.suffix in ONE_TENSOR:
            unnamed.append(path)
            continue
        found = _load(path)
        if name is not None and len(found) != 1:
            raise UsageError(f"{argument} must hold one tensor, got {', '.join(found) or 'none'}")
        named = found if name is None else dict.fromkeys([name], *found.values())
        for key, array in named.items():
            if key in inputs:
                raise UsageError(f"the input {key} is given twice")
            inputs[key] = array
    free = [name for name in declared if name not in inputs]
    if len(unnamed) > len(free):
        raise UsageError(f"{unnamed[len(free)]} is one file too many: inputs {', '.join(declared)}")
    return inputs | {name: _load(path)[""] for name, path in zip(free, unnamed, strict=False)}


def check_target(target: str) -> None:
    """Raise UsageError, before anything is computed, for an output path that cannot be written."""
    path = Path(target)
    _check_suffix(path)
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder")


def check_room(target: str, outputs: Collection[str]) -> None:
    """Raise UsageError if the file can hold one tensor and there are several outputs."""
    if len(outputs) > 1 and NAME not in target and Path(target).suffix != ".safetensors":
        raise UsageError(
            f"{target} holds one tensor, but the outputs are {', '.join(outputs)}: "
            f"use a .safetensors file, or {NAME} in the path"
        )


def write_outputs(outputs: Mapping[str, Array], target: str) -> None:
    """Write outputs to `target`. An existing file is replaced once the new one is complete."""
    check_room(target, outputs)
    if NAME in target:
        for name in outputs:  # the server chooses the names: none may lead into another folder
            if not FILE_NAME.fullmatch(name):
                raise WarpcallError(
                    f"the output {name!r:.80} cannot be part of a file's name: "
                    "use a .safetensors file"
                )
        for name, array in outputs.items():
            _write({name: array}, Path(target.replace(NAME, name)))
    else:
        _write(outputs, Path(target))


def _split(argument: str, declared: Sequence[str]) -> tuple[str | None, Path]:
    name, equals, path = argument.partition("=")
    named = bool(equals) and (name in declared or not Path(argument).exists())
    found = Path(path if named else argument)
    _check_suffix(found)
    return (name if named else None), found


def _check_suffix(path: Path) -> None:
    if path.suffix not in (*SUFFIXES, *IMAGES):
        raise UsageError(f"{path} must end in {', '.join((*SUFFIXES, *IMAGES))}")
    if path.suffix in IMAGES:
        _pillow(path)


def _pillow(path: Path) -> Any:
    """The module PIL.Image."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(f"{path} is an image, which takes Pillow: pip install pillow") from None
    return Image


def _read_image(path: Path) -> Array:
    """An image as uint8: (height, width, channel), or (height, width) if it is grey."""
    pillow = _pillow(path)
    try:
        with pillow.open(path, formats=("PNG", "JPEG")) as image:
            if image.width * image.height > MOST_PIXELS:
                raise WarpcallError(
                    f"{path} must have at most {MOST_PIXELS:,} pixels, "
                    f"got {image.width} x {image.height}"
                )
            plain = image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")
            return np.asarray(plain)
    except pillow.UnidentifiedImageError:
        raise WarpcallError(f"{path} is not a PNG or JPEG image") from None
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        if isinstance(error, OSError) and error.filename:
            raise  # it is missing, or may not be read
        raise WarpcallError(f"{path} cannot be read: {error}") from error


def _write_image(array: Array, path: Path) -> None:
    grey = array.ndim == 2
    channels = (3,) if path.suffix != ".png" else (3, 4)
    if array.dtype != np.uint8 or not (grey or (array.ndim == 3 and array.shape[2] in channels)):
        raise WarpcallError(
            f"{path} holds uint8 of (height, width) or (height, width, "
            f"{' or '.join(map(str, channels))}), got {array.dtype} of {array.shape}"
        )
    if not array.size:
        raise WarpcallError(f"{path} must have at least one pixel, got {array.shape}")
    made = _pillow(path).fromarray(np.ascontiguousarray(array))
    with replacing(path) as file:
        made.save(file, "PNG" if path.suffix == ".png" else "JPEG")


def _load(path: Path) -> dict[str, Array]:
    """The tensors of a file by name. The tensor of a .npy file has the name ""."""
    # Opening a pipe may wait for ever.
    if path.exists() and not path.is_file() and not path.is_dir():
        raise WarpcallError(f"{path} must be a regular file, got a pipe, socket or device")
    if path.suffix == ".safetensors":
        kind: Kind[Array] = Kind()
        try:
            return decode(np.fromfile(path, np.uint8), kind)
        except InvalidInput as error:
            raise WarpcallError(f"{path} is not a safetensors file: {error}") from error
    if path.suffix in IMAGES:
        return {"": _read_image(path)}
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":  # otherwise numpy would take it for a pickle
            raise WarpcallError(f"{path} is not a .npy file")
    try:
        return {"": np.load(path, allow_pickle=False)}
    except DAMAGED as error:
        raise WarpcallError(f"{path} cannot be read: {error}") from error


def _write(outputs: Mapping[str, Array], path: Path) -> None:
    if path.suffix == ".safetensors":
        body = encode(outputs, {})
        with replacing(path) as file:
            for piece in body.slices():
                file.write(piece)
        return
    (array,) = outputs.values()
    if path.suffix in IMAGES:
        _write_image(array, path)
        return
    if np.dtype(array.dtype.str) != array.dtype:  # ml_dtypes' dtypes would be read back as void
        raise WarpcallError(f"{path} cannot hold {array.dtype}: use a .safetensors file")
    with replacing(path) as file:
        # Not np.save: it asks for the position in the file, which a pipe does not have.
        described = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, described)
        file.write(array.reshape(-1).view(np.uint8))
