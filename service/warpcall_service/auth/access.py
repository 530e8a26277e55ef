"""What must hold before a server serves others: keys where they are needed, a usable certificate."""

from __future__ import annotations

import ssl

from warpcall_service.auth.users import Snapshot
from warpcall_service.http.listen import ServerError
from warpcall_service.settings import Settings


def check_access(settings: Settings, keys: Snapshot) -> None:
    """Refuse to start without keys where they are needed, or with an unusable certificate."""
    check_keys(settings, keys)
    check_certificate(settings)


def check_keys(settings: Settings, keys: Snapshot) -> None:
    """Refuse to start without keys where they are needed."""
    if settings.require_keys and not keys.keys:
        raise ServerError(
            "WARPCALL_REQUIRE_KEYS is set and the database has no API key; make one "
            "(warpcall-server users add NAME, then keys create NAME), or restore the database "
            "from its backup"
        )
    others = _way_of_others(settings)
    if others and not (settings.insecure or keys.keys):
        raise ServerError(
            f"{others} and no API keys exist to tell them apart; make one (warpcall-server users "
            "add NAME, then keys create NAME), serve 127.0.0.1 without a proxy, or set "
            "WARPCALL_INSECURE=true (--insecure) where the network is trusted"
        )


def check_certificate(settings: Settings) -> ssl.SSLContext | None:
    """Load the certificate and its key; None if the server speaks no TLS.

    Raises:
        ServerError: they cannot be used.
    """
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = f"{settings.tls_cert} and {settings.tls_key or 'no other file'}"
        raise ServerError(
            f"WARPCALL_TLS_CERT and WARPCALL_TLS_KEY: {files}: {error.strerror or error}"
        ) from None
    return context


def _way_of_others(settings: Settings) -> str:
    """How programs on other machines reach the server; empty if they do not."""
    if not settings.is_local:
        return f"{settings.host} can be reached by others"
    if settings.trusted_proxies != "none":
        return "WARPCALL_TRUSTED_PROXIES names a proxy, through which others reach the server,"
    if settings.root_path:
        return "WARPCALL_ROOT_PATH says that others reach the server through a proxy,"
    return ""
