"""Errors as tracebacks name them: by modules that users can import them from."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import traceback

import pytest

import warpcall
from tests.client.flavours import Flavour
from warpcall import ConnectionFailed, WarpcallError, errors


def all_below(kind: type[WarpcallError]) -> set[type[WarpcallError]]:
    return {kind}.union(*map(all_below, kind.__subclasses__()))


def test_each_error_of_the_sdk_is_defined_where_users_import_it() -> None:
    for module in pkgutil.walk_packages(warpcall.__path__, "warpcall."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    own = {kind for kind in all_below(WarpcallError) if kind.__module__.startswith("warpcall.")}

    assert {kind.__module__ for kind in own} == {"warpcall.errors"}
    for kind in own:
        assert getattr(errors, kind.__name__) is kind
        assert getattr(warpcall, kind.__name__) is kind
        assert kind.__name__ in warpcall.__all__


def test_a_traceback_of_a_refused_connection_has_the_public_name(
    direct: Flavour, unused_port: int
) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        direct.ask_url(f"http://127.0.0.1:{unused_port}", lambda gpu: gpu.health(), retries=0)

    last = traceback.format_exception_only(caught.value)[-1]
    assert last.startswith("warpcall.errors.ConnectionFailed: cannot reach ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
