"""Browsers of the application in this process."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from tests.app.harness import App
from tests.service.auth.browsers import Browsers
from tests.service.databases import Database


@dataclass(frozen=True)
class AppSite(Browsers):
    """The application, and its database."""

    app: App
    database: Database

    def client(self, address: str, scheme: str) -> httpx.Client:
        return self.app.client(address=address, scheme=scheme)
