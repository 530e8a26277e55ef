"""Runs tests of upload processes with the sandbox and without it."""

from __future__ import annotations

import pytest

from tests.service.runs.sandboxes import Uploads, needs_bubblewrap


@pytest.fixture(params=[pytest.param("sandboxed", marks=needs_bubblewrap), "trusted"])
def uploads(request: pytest.FixtureRequest) -> Uploads:
    """How upload processes run, one way after the other."""
    found: Uploads = request.param
    return found
