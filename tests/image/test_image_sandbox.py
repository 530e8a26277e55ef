"""The sandbox of uploaded code in a container: with what docs/settings.md allows it, and without."""

from __future__ import annotations

import json

from tests.image.conftest import Box
from tests.image.engine import ACCOUNT, SANDBOX, Engine
from tests.waiting import until

UPLOADS = ("--env=WARPCALL_UPLOADS=sandboxed", "--env=WARPCALL_HOST=127.0.0.1")
READ = (
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/readyz').read().decode())"
)


def uploads(engine: Engine, *options: str) -> str:
    """What /readyz says about uploads, once they were checked."""
    with engine.volume() as volume, engine.server(volume, *UPLOADS, *options) as container:
        box = Box(engine, container, volume, "")
        box.wait_ready()

        def said() -> str:
            return str(json.loads(box.inside("python", "-c", READ))["uploads"])

        until(lambda: "is being checked" not in said(), "the sandbox was not checked")
        return said()


def test_the_sandbox_works_with_the_options_of_the_compose_file(engine: Engine) -> None:
    assert uploads(engine, *ACCOUNT, *SANDBOX[engine.name]) == "sandboxed"


def test_without_them_uploads_are_refused_with_what_to_change(engine: Engine) -> None:
    without_rights = uploads(engine)
    without_proc = uploads(engine, *ACCOUNT)

    assert without_rights.startswith("unavailable: ")
    assert "may not gain rights (no_new_privs)" in without_rights
    assert without_proc.startswith("unavailable: ")
    assert "in a container" in without_proc or "this container" in without_proc
