"""The command `mcp`."""

from __future__ import annotations

import typer

from warpcall._cli.files import UsageError
from warpcall._cli.output import Url

app = typer.Typer()


@app.command()
def mcp(url: Url = None) -> None:
    """Serve tools for agents that write kernels.

    It speaks the Model Context Protocol on stdin and stdout. Its tools list ops and problems, evaluate candidates, find the fastest of
    several, explain what Triton kernels need, profile an implementation, and show its history. It needs the extra `mcp`.

    \b
    pip install 'warpcall[mcp]'
    claude mcp add warpcall -- warpcall mcp --url http://gpu-box:8000
    """
    try:
        from warpcall._extras.mcp_server import mcp_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "pydantic"):
            raise
        raise UsageError("mcp needs a package: pip install 'warpcall[mcp]'") from None
    mcp_server(url).run("stdio")
