"""Uses the client: what test_lowest_versions.py runs in an environment of the lowest versions."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import numpy as np

from warpcall import AsyncClient, Client, TransportError
from warpcall.dtypes import numpy_dtypes


async def permuted(url: str, x: np.ndarray) -> np.ndarray:
    async with AsyncClient(url) as gpu:
        return await gpu.permute(x, 1, 0)


def main(url: str) -> None:
    x = np.arange(6).reshape(2, 3)
    with Client(url) as gpu:
        for dtype in numpy_dtypes().values():
            y = gpu.permute(x.astype(dtype), (1, 0))
            assert y.dtype == dtype
            assert y.tobytes() == x.astype(dtype).T.tobytes()
        with gpu.put(x) as stored:
            np.testing.assert_array_equal(np.asarray(stored), x)
            np.testing.assert_array_equal(gpu.isin(stored, [2, 3]), np.isin(x, [2, 3]))
        answered = gpu.jobs.submit(
            "permute",
            cases=[{"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}],
            implementations=["torch"],
            precision="check",
        )
        assert answered.wait().state == "succeeded"
    np.testing.assert_array_equal(asyncio.run(permuted(url, x)), x.T)
    with contextlib.suppress(TransportError):  # TLS is not spoken there, and httpcore finds out
        Client(url.replace("http:", "https:"), retries=0).health()
        raise AssertionError("plain HTTP passed for TLS")


if __name__ == "__main__":
    main(sys.argv[1])
