"""An application that browsers of several tests log in to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.harness import running_app
from tests.app.sites import AppSite
from tests.service.databases import Database


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppSite]:
    folder: Path = tmp_path_factory.mktemp("site")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    database.key("first")
    with running_app(data_dir=folder) as app:
        yield AppSite(app, database)
