"""Asks a server at an address of this machine, for the commands of the administrator."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

ANSWER_S = 3.0  # within which a server must answer
MAX_ANSWER_BYTES = 4 << 20
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # nosec B104  # not listened on


def is_ours(host: str, port: int) -> bool:
    """Whether a Warpcall server answers there."""
    return is_ready_answer(read_json(host, port, "/readyz"))


def is_ready_answer(answer: object) -> bool:
    """Whether this is an answer of /readyz."""
    return isinstance(answer, dict) and "lanes" in answer


def read_json(host: str, port: int, path: str, key: str = "") -> Any:
    """What a server of this machine answers; None if none does, or not in JSON.

    Over TLS any certificate will do, since it names the address that others use.
    """
    local = EVERYWHERE.get(host, host)
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    for connection in (
        http.client.HTTPConnection(local, port, timeout=ANSWER_S),
        http.client.HTTPSConnection(local, port, timeout=ANSWER_S, context=unverified),
    ):
        try:
            connection.request(
                "GET", path, headers={"Authorization": f"Bearer {key}"} if key else {}
            )
            return json.loads(connection.getresponse().read(MAX_ANSWER_BYTES))
        except (OSError, ValueError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    return None
