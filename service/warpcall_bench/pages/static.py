"""The files that pages load: our own, and those that come from other projects."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from warpcall.errors import NotFound
from warpcall_bench.compressed import accepts_gzip, pack

MEDIA = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
YEAR_S = 31_536_000


@dataclass(frozen=True, slots=True)
class Vendored:
    """A file of another project, as its npm package has it.

    Attributes:
        path: of the file in the package.
        license: SPDX identifier of the package's licence.
        sha256: hash of the file.
    """

    package: str
    version: str
    path: str
    license: str
    sha256: str


VENDORED = {
    "htmx.min.js": Vendored(
        "htmx.org",
        "2.0.11",
        "dist/htmx.min.js",
        "0BSD",
        "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    ),
    "uplot.min.js": Vendored(
        "uplot",
        "1.6.32",
        "dist/uPlot.iife.min.js",
        "MIT",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    ),
    "uplot.min.css": Vendored(
        "uplot",
        "1.6.32",
        "dist/uPlot.min.css",
        "MIT",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file and what a response with it needs. `packed` is the content, compressed."""

    content: bytes
    packed: bytes
    media_type: str
    version: str


@functools.cache
def static_files() -> dict[str, StaticFile]:
    """All files of the folder `static`, by name."""
    folder = files("warpcall_bench.pages") / "static"
    found = {}
    for entry in folder.iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in MEDIA:
            content = entry.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:12]
            found[entry.name] = StaticFile(content, pack(content, 9), MEDIA[suffix], version)
    return found


def static_path(name: str) -> str:
    """The path of a file below the server's root, with its version, so that browsers may keep it."""
    return f"static/{name}?v={static_files()[name].version}"


def routes() -> APIRouter:
    """The route of the files. It needs no key: the page to log in loads them, too."""
    router = APIRouter(include_in_schema=False)
    known = static_files()

    @router.get("/static/{name}")
    async def static_file(request: Request, name: str) -> Response:
        if (file := known.get(name)) is None:
            raise NotFound(f"there is no file {name!r:.60} here", field="name")
        headers = {"etag": f'"{file.version}"', "cache-control": "no-cache"}
        if request.query_params.get("v") == file.version:
            headers["cache-control"] = f"public, max-age={YEAR_S}, immutable"
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        content, headers["vary"] = file.content, "accept-encoding"
        if accepts_gzip(request):
            content, headers["content-encoding"] = file.packed, "gzip"
        return Response(content, media_type=file.media_type, headers=headers)

    return router
