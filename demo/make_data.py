"""Draw demo/data/photo.npy and play demo/data/melody.wav: the demo's picture and its sound.

    python -m demo.make_data

Both follow from the numbers below and nothing else, so they may be shipped under any terms. The
third input, demo/data/alice.txt, is the opening of Lewis Carroll's "Alice's Adventures in
Wonderland" (1865), which is in the public domain.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

DATA = Path(__file__).parent / "data"

HEIGHT, WIDTH = 192, 256
RAYS = 3  # a side: each pixel is the mean of 3 x 3 rays
BOUNCES = 3
SUN = np.array([0.55, 0.65, -0.52])
SPHERES = (  # centre, radius, colour, share of mirrored light
    ((-1.15, 0.8, 3.6), 0.8, (0.90, 0.28, 0.18), 0.15),
    ((0.55, 1.0, 4.6), 1.0, (0.92, 0.92, 0.95), 0.80),
    ((0.35, 0.38, 2.5), 0.38, (0.15, 0.55, 0.85), 0.25),
    ((1.75, 0.5, 3.0), 0.5, (0.95, 0.75, 0.20), 0.20),
)

RATE = 16_000  # samples a second
SECONDS = 3.0
TUNE = (220.0, 277.18, 329.63, 440.0, 554.37, 440.0, 329.63, 277.18, 220.0)  # Hz; A major, up, down


def draw() -> npt.NDArray[np.uint8]:
    """Four balls on a chequered floor under an evening sky, ray-traced: (192, 256, 3), RGB."""
    height, width = HEIGHT * RAYS, WIDTH * RAYS
    rows, columns = np.mgrid[:height, :width] + 0.5
    x = (columns - width / 2) / height
    y = (height / 2 - rows) / height
    towards = _unit(np.stack([x * 1.25, y * 1.25 - 0.12, np.ones_like(x)], axis=-1))
    origin = np.broadcast_to(np.array([0.0, 1.25, -0.6]), towards.shape)
    light = _trace(origin.reshape(-1, 3), towards.reshape(-1, 3), BOUNCES)
    pixels = light.reshape(HEIGHT, RAYS, WIDTH, RAYS, 3).mean(axis=(1, 3))
    seen = np.clip(pixels, 0.0, 1.0) ** (1 / 2.2)
    image: npt.NDArray[np.uint8] = np.rint(seen * 255).astype(np.uint8)
    return image


def play() -> npt.NDArray[np.int16]:
    """A tune on a plucked string (Karplus and Strong, 1983): (48000,), 16 kHz."""
    random = np.random.RandomState(1983)  # its stream is frozen for good, a Generator's is not
    sound = np.zeros(int(RATE * SECONDS))
    pause = len(sound) // (len(TUNE) + 1)
    for i, pitch in enumerate(TUNE):
        note = _pluck(random.uniform(-1, 1, round(RATE / pitch)), len(sound) - i * pause)
        sound[i * pause :] += note
    loud = sound / np.abs(sound).max() * 0.8
    samples: npt.NDArray[np.int16] = np.rint(loud * 32767).astype(np.int16)
    return samples


def main() -> None:
    """Write both files."""
    DATA.mkdir(exist_ok=True)
    np.save(DATA / "photo.npy", draw())
    with wave.open(str(DATA / "melody.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(play().astype("<i2").tobytes())


def _trace(origin: Array, towards: Array, bounces: int) -> Array:
    """The light, linear RGB, that comes to each origin (N, 3) from the direction (N, 3)."""
    distance, normal, colour, mirror = _nearest(origin, towards)
    light = _sky(towards)
    hit = np.isfinite(distance)
    if not hit.any():
        return light
    towards, normal, mirror = towards[hit], normal[hit], mirror[hit, None]
    spot = origin[hit] + distance[hit, None] * towards + 1e-4 * normal
    sun = _unit(SUN)
    lit = np.isinf(_nearest(spot, np.broadcast_to(sun, spot.shape))[0])
    direct = np.clip(normal @ sun, 0, None) * lit
    ambient = 0.22 + 0.10 * normal[:, 1]
    shade = colour[hit] * (ambient[:, None] * (0.8, 0.9, 1.15) + direct[:, None] * (1.0, 0.88, 0.7))
    if bounces:
        bounced = towards - 2 * np.sum(towards * normal, axis=1, keepdims=True) * normal
        shade = (1 - mirror) * shade + mirror * _trace(spot, bounced, bounces - 1)
        halfway = _unit(sun - towards)
        gloss = np.clip(np.sum(normal * halfway, axis=1), 0, None) ** 60 * lit
        shade += np.where(mirror > 0, 0.6 * gloss[:, None], 0.0)
    haze = 1 - np.exp(-0.035 * distance[hit, None])
    light[hit] = (1 - haze) * shade + haze * light[hit]
    return light


def _nearest(origin: Array, towards: Array) -> tuple[Array, Array, Array, Array]:
    """What each ray meets first: distance (inf for nothing), normal, colour, mirrored share."""
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(towards[:, 1] < -1e-6, -origin[:, 1] / towards[:, 1], np.inf)
        spot = origin + distance[:, None] * towards
        dark = (np.floor(spot[:, 0]) + np.floor(spot[:, 2])) % 2 == 1
    colour = np.where(dark[:, None], (0.18, 0.20, 0.24), (0.78, 0.74, 0.68))
    normal = np.broadcast_to((0.0, 1.0, 0.0), towards.shape).copy()
    mirror = np.zeros(len(towards))
    for centre, radius, own_colour, own_mirror in SPHERES:
        offset = origin - centre
        along = -np.sum(offset * towards, axis=1)
        inside = along**2 - np.sum(offset**2, axis=1) + radius**2
        depth = along - np.sqrt(np.clip(inside, 0, None))
        nearer = (inside > 0) & (depth > 1e-3) & (depth < distance)
        distance[nearer] = depth[nearer]
        normal[nearer] = (offset[nearer] + depth[nearer, None] * towards[nearer]) / radius
        colour[nearer] = own_colour
        mirror[nearer] = own_mirror
    return distance, normal, colour, mirror


def _sky(towards: Array) -> Array:
    """Orange at the horizon, blue above, and a glow around the sun."""
    height = np.clip(towards[:, 1:2], 0, 1) ** 0.6
    glow = np.clip(towards @ _unit(SUN), 0, 1)[:, None] ** 40
    return (1 - height) * (0.95, 0.62, 0.38) + height * (0.10, 0.25, 0.60) + glow * (0.6, 0.5, 0.3)


def _unit(vectors: Array) -> Array:
    lengths: Array = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / lengths


def _pluck(noise: Array, length: int) -> Array:
    """A string, shaken by `noise`, that loses its high notes at each of its periods."""
    periods = [noise]
    for _ in range(length // len(noise)):
        last = periods[-1]
        periods.append(0.996 * 0.5 * (last + np.roll(last, 1)))
    return np.concatenate(periods)[:length]


if __name__ == "__main__":
    main()
