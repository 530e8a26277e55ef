"""Clients and stored tensors in other processes: pickled, and inherited by a fork."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import joblib
import numpy as np
import pytest

from tests.servers import Server, running_server
from warpcall import AsyncClient, Client, StoredTensor
from warpcall._tensors import client_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture
def gpu(server: Server) -> Iterator[Client]:
    with Client(server.url, timeout_s=30, retries=2, progress=False) as client:
        yield client


def turned(gpu: Client, x: Any) -> Any:
    return gpu.permute(x, dims=(1, 0))


def fetched(stored: StoredTensor[Any]) -> Any:
    return stored.get()


def test_a_pickled_client_has_the_same_settings(gpu: Client) -> None:
    same, other = pickle.loads(pickle.dumps((gpu, AsyncClient("http://gpu-box:8000", api_key="k"))))

    with same:
        np.testing.assert_array_equal(turned(same, X), X.T)
    assert same._core.recipe == gpu._core.recipe
    assert (type(other), other.url, other._core.config.api_key) == (
        AsyncClient,
        "http://gpu-box:8000",
        "k",
    )


def test_a_pickled_stored_tensor_is_the_one_on_the_server(gpu: Client) -> None:
    import torch  # not above: processes that are spawned import this file

    client_of.cache_clear()
    own = client_of(gpu._core.recipe)  # the client of stored tensors that are unpickled
    assert isinstance(own, Client)
    with gpu.put(torch.from_numpy(X).bfloat16()) as stored, own:
        same = pickle.loads(pickle.dumps(stored))

        assert (same.id, same.shape, same.expires) == (stored.id, stored.shape, stored.expires)
        assert torch.equal(same.get(), stored.get())
        assert torch.equal(turned(gpu, same), stored.get().t())
        assert stored.id in same._repr_html_()
    client_of.cache_clear()  # it is closed


def test_processes_that_are_spawned_take_both(gpu: Client) -> None:
    with (
        gpu.put(X) as stored,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        outs = [pool.submit(turned, gpu, X).result(120).T, pool.submit(fetched, stored).result(120)]

    for out in outs:
        np.testing.assert_array_equal(out, X)


def test_joblib_takes_both_to_its_workers(gpu: Client) -> None:
    with gpu.put(X) as stored, joblib.Parallel(n_jobs=2, backend="loky") as parallel:
        outs = parallel(joblib.delayed(turned)(gpu, X + i) for i in range(8))
        copies = parallel(joblib.delayed(fetched)(one) for one in [stored] * 4)
        methods = parallel(joblib.delayed(one)(X, dims=(1, 0)) for one in [gpu.permute] * 2)

    for i, out in enumerate(outs):
        np.testing.assert_array_equal(out, (X + i).T)
    for copy in copies:
        np.testing.assert_array_equal(copy, X)
    np.testing.assert_array_equal(methods[1], X.T)


def test_forks_do_not_share_connections(gpu: Client) -> None:
    turned(gpu, X)  # there is an idle connection, which each fork inherits

    def call_often(seed: int) -> None:
        x = np.full((64, 64), seed, np.float32)
        assert all((turned(gpu, x) == seed).all() for _ in range(50))

    context = multiprocessing.get_context("fork")
    forks = [context.Process(target=call_often, args=(seed,)) for seed in range(1, 4)]
    for fork in forks:
        fork.start()
    call_often(0)
    for fork in forks:
        fork.join(120)

    assert [fork.exitcode for fork in forks] == [0, 0, 0]
    np.testing.assert_array_equal(turned(gpu, X), X.T)
