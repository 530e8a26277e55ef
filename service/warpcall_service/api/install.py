"""The client as a wheel for pip, made of the client that this server uses: both have one version."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

import warpcall
from warpcall.errors import InvalidInput, NotFound
from warpcall_service.http.openapi_parts import problem_responses
from warpcall_service.text import brief

PATH = "/install"
NAME = f"warpcall-{warpcall.__version__}-py3-none-any.whl"
WHEEL = "application/zip"
FROM_1980 = (1980, 1, 1, 0, 0, 0)  # time of each file: the same client is the same wheel
# https://packaging.python.org/en/latest/specifications/binary-distribution-format/
TAGS = "Wheel-Version: 1.0\nGenerator: warpcall\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def install() -> APIRouter:
    """The routes with which pip installs the client. They need no key: the client has no secrets."""
    router = APIRouter(prefix=PATH, tags=["install"])

    @router.get("", response_class=PlainTextResponse)
    async def how_to_install(request: Request) -> Response:
        """The command that installs the client which matches this server."""
        return PlainTextResponse(f"pip install {str(request.base_url).rstrip('/')}{PATH}/{NAME}\n")

    @router.get(
        "/{file}",
        response_class=Response,
        responses={
            200: {"content": {WHEEL: {"schema": {"type": "string", "format": "binary"}}}},
            **problem_responses([NotFound, InvalidInput]),
        },
    )
    async def download_client(file: str) -> Response:
        """The client as a wheel."""
        if file != NAME:
            raise NotFound(f"there is no file {brief(file)}, there is {NAME}", field="file")
        return Response(await run_in_threadpool(wheel), media_type=WHEEL)

    return router


@functools.cache
def wheel() -> bytes:
    """The wheel of the client. It takes 30 ms to make, once.

    Raises:
        NotFound: the client was not installed by pip, so nothing says what it needs.
    """
    try:
        installed = metadata.distribution("warpcall")
    except metadata.PackageNotFoundError:
        raise NotFound(
            "this server's client was not installed by pip, so it cannot be passed on"
        ) from None
    root = Path(warpcall.__file__).parent
    files = {
        f"warpcall/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = f"warpcall-{warpcall.__version__}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (installed.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = TAGS.encode()
    record = [f"{name},{_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, FROM_1980)
            entry.external_attr = 0o100644 << 16  # the mode of a file that all may read
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _digest(content: bytes) -> str:
    """The hash of a file as RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
