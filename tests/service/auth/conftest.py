"""A server that browsers of several tests log in to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import running_server
from tests.service.auth.browsers import BEHIND_A_PROXY, Site
from tests.service.databases import Database


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("site"))})
    database.key("first")
    with running_server({**database.settings, **BEHIND_A_PROXY}) as server:
        yield Site(server, database)
