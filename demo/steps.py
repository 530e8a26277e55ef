"""The demo's seven calls: real inputs, and what numpy says must come back.

Nothing here knows how the server computes: every expected value is plain numpy in float64.
"""

from __future__ import annotations

import re
import wave
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

DATA = Path(__file__).parent / "data"
BANDS = 8  # of the filter bank, each 500 Hz wide, from 0 to 4 kHz
TAPS = 31
RATE = 16_000
FEATURES = 16  # of a word's vector
SCALE = FEATURES**-0.5


@dataclass(frozen=True)
class Step:
    """One call, and the answer that it must have.

    Attributes:
        about: what the input is, in a few words.
        expected: the outputs by name.
        error: allowed rtol, and atol in units of the largest expected value; 0 means exact.
        zeros: whether an expected 0 must come back as exactly 0.
    """

    op: str
    about: str
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    params: Mapping[str, Any] = field(default_factory=dict)
    error: float = 0.0
    zeros: bool = False

    @property
    def nbytes(self) -> int:
        """What any implementation has to move: each input read once, each output written once."""
        return sum(a.nbytes for a in (*self.inputs.values(), *self.expected.values()))

    def wrong(self, outputs: Mapping[str, Array]) -> str | None:
        """What is wrong with these outputs, or None."""
        if outputs.keys() != self.expected.keys():
            return f"outputs {', '.join(outputs)}, not {', '.join(self.expected)}"
        for name, wanted in self.expected.items():
            got = outputs[name]
            if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
                return f"{name} is {got.dtype}{got.shape}, not {wanted.dtype}{wanted.shape}"
            atol = self.error * float(np.abs(wanted).max())
            if not np.allclose(got, wanted, rtol=self.error, atol=atol):
                return f"{name} differs by {np.abs(got - wanted).max():.2g}"
            if self.zeros and got[wanted == 0].any():
                return f"{name} is not 0 where it must be"
        return None


def steps() -> list[Step]:
    """All seven, in the order of the README's table."""
    softmax = _masked_softmax()
    return [
        _permute(),
        softmax,
        _masked_softmax_backward(softmax.expected["out"]),
        _conv(),
        _conv_backward(),
        _transpose_add(),
        _isin(),
    ]


def photo() -> npt.NDArray[np.uint8]:
    """The picture, (192, 256, 3)."""
    pixels: npt.NDArray[np.uint8] = np.load(DATA / "photo.npy")
    return pixels


def sound() -> npt.NDArray[np.float32]:
    """The melody, (48000,), in [-1, 1)."""
    with wave.open(str(DATA / "melody.wav"), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return samples.astype(np.float32) / np.float32(32768)


def sentences() -> list[list[str]]:
    """The words of each sentence of the text, in lower case."""
    text = (DATA / "alice.txt").read_text().lower()
    found = [re.findall(r"[a-z']+", part) for part in re.split(r"[.!?;:]", text)]
    return [words for words in found if words]


def _permute() -> Step:
    image = photo()
    out = np.ascontiguousarray(image.transpose(2, 0, 1))
    return Step("permute", "photo, HWC to CHW", {"x": image}, {"out": out}, {"dims": (2, 0, 1)})


def _transpose_add() -> Step:
    image = photo().astype(np.float32) / np.float32(255)
    a, b = image.mean(axis=2, dtype=np.float32), np.ascontiguousarray(image[:, ::-1, 2].T)
    return Step("transpose-add", "photo on its mirror", {"a": a, "b": b}, {"out": a.T + b})


def _isin() -> Step:
    words = [word for sentence in sentences() for word in sentence]
    stop_words = (DATA / "stop-words.txt").read_text().split()
    ids = {word: i for i, word in enumerate(dict.fromkeys([*words, *stop_words]))}
    inputs = {
        "elements": np.array([ids[w] for w in words], np.int32),
        "test_elements": np.array([ids[w] for w in stop_words], np.int32),
    }
    out = np.array([w in stop_words for w in words])
    return Step("isin", "stop words of the text", inputs, {"out": out})


def _masked_softmax() -> Step:
    """Each sentence attends to its own words; the rest of the padded row gets exact zeros."""
    scores, lengths = _attention()
    weight = np.exp(scores.astype(np.float64) * SCALE)
    weight *= np.arange(scores.shape[-1]) < lengths[..., None]
    out = (weight / weight.sum(axis=-1, keepdims=True)).astype(np.float32)
    inputs = {"x": scores, "lengths": lengths}
    about = "words of each sentence"
    return Step("masked-softmax", about, inputs, {"out": out}, {"scale": SCALE}, 1e-5, True)


def _masked_softmax_backward(y: Array) -> Step:
    """The gradient that draws each word's attention to itself."""
    g = np.broadcast_to(np.eye(y.shape[-1], dtype=np.float32), y.shape).copy()
    y64, g64 = y.astype(np.float64), g.astype(np.float64)
    grad = SCALE * y64 * (g64 - (g64 * y64).sum(axis=-1, keepdims=True))
    return Step(
        "masked-softmax-backward",
        "its gradient",
        {"grad_output": g, "output": y},
        {"grad_x": grad.astype(np.float32)},
        {"scale": SCALE},
        1e-5,
    )


def _conv() -> Step:
    """The melody split into eight bands by a bank of filters."""
    x, weight = _bands()
    out = np.stack([np.convolve(c, w[::-1], "same") for c, w in zip(x[0], weight, strict=True)])
    return Step(
        "conv",
        f"melody in {BANDS} bands",
        {"x": x.astype(np.float32), "weight": weight.astype(np.float32)},
        {"out": out[None].astype(np.float32)},
        {"padding_l": TAPS // 2},
        1e-5,
    )


def _conv_backward() -> Step:
    """One step towards filters that make the melody's echo (100 samples late)."""
    x, weight = _bands()
    grad_output = np.roll(x, 100, axis=2)
    grad_x = np.stack(
        [np.convolve(g, w, "same") for g, w in zip(grad_output[0], weight, strict=True)]
    )
    half = TAPS // 2
    padded = np.pad(x[0], ((0, 0), (half, half)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, TAPS, axis=1)
    grad_weight = np.einsum("ct,ctj->cj", grad_output[0], windows)
    return Step(
        "conv-backward",
        "gradient of the filters",
        {
            "grad_output": grad_output.astype(np.float32),
            "x": x.astype(np.float32),
            "weight": weight.astype(np.float32),
        },
        {"grad_x": grad_x[None].astype(np.float32), "grad_weight": grad_weight.astype(np.float32)},
        {"padding_l": half},
        1e-4,
    )


def _attention() -> tuple[Array, Array]:
    """Scores (sentences, K, K) of each word with each, and lengths (sentences, 1); K the longest."""
    text = sentences()
    longest = max(map(len, text))
    vectors = np.zeros((len(text), longest, FEATURES))
    for vector, sentence in zip(vectors, text, strict=True):
        vector[: len(sentence)] = [_vector(word) for word in sentence]
    scores = (vectors @ vectors.transpose(0, 2, 1)).astype(np.float32)
    lengths = np.array([[len(sentence)] for sentence in text], np.int32)
    return scores, lengths


def _vector(word: str) -> Array:
    """A word's features, by hashing: the same word always points the same way."""
    bits = zlib.crc32(word.encode())
    return np.array([(bits >> i & 3) - 1.5 for i in range(FEATURES)])


def _bands() -> tuple[Array, Array]:
    """The melody on eight channels (1, 8, 48000), and windowed-sinc band filters (8, 31)."""
    x = np.broadcast_to(sound().astype(np.float64), (1, BANDS, len(sound()))).copy()
    t = np.arange(TAPS) - TAPS // 2
    bounds_hz = np.arange(BANDS + 1) * 500.0 / RATE * 2
    low = [bound * np.sinc(bound * t) for bound in bounds_hz]
    bank = np.diff(np.array(low), axis=0) * np.hamming(TAPS)
    return x, bank.astype(np.float32).astype(np.float64)
