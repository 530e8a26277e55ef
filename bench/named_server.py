"""A server whose users are named on the command line, each one's key being his name.

    python -m bench.named_server alice bob

For measurements and tests of what users do to each other, without a database of keys.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from warpcall.errors import Unauthorized
from warpcall_service.callers import Caller, Identify
from warpcall_service.server import serve
from warpcall_service.settings import Settings


def one_of(names: list[str]) -> Identify:
    """Callers by `Authorization: Bearer <name>`."""
    table = {f"Bearer {name}".encode(): Caller(name, "call") for name in names}

    def identify(headers: Mapping[bytes, bytes]) -> Caller:
        caller = table.get(headers.get(b"authorization", b""))
        if caller is None:
            raise Unauthorized(f"the key must be one of {', '.join(names)}", field="authorization")
        return caller

    return identify


def main() -> None:
    """Serve as `warpcall-server --quiet` does."""
    logging.basicConfig(level="WARNING")
    serve(Settings.load(), one_of(sys.argv[1:]))


if __name__ == "__main__":
    main()
