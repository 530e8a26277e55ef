"""Whether the variables of OpenTelemetry ask for traces; if so, opens them.

OpenTelemetry is imported only then.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from warpcall import __version__
from warpcall.telemetry import asks_for_traces, why_not
from warpcall_service.http.listen import ServerError

if TYPE_CHECKING:
    from warpcall_service.tracing.traces import ServerTraces

log = logging.getLogger("warpcall")


def open_traces(
    instance: str,
    link_folders: tuple[str, ...],
    variables: Mapping[str, str] = os.environ,
) -> ServerTraces | None:
    """The traces of a server; None if nothing asks for them, or they cannot be made.

    Args:
        instance: id of the server.
        link_folders: as in `ServerTraces`.

    Raises:
        ServerError: a variable of OpenTelemetry has a value that its SDK refuses.
    """
    if not asks_for_traces(variables):
        return None
    if reason := why_not(variables):
        log.warning("no traces are made: %s", reason)
        return None
    from warpcall_service.tracing.tracer import Tracer
    from warpcall_service.tracing.traces import ServerTraces

    try:
        tracer = Tracer(__version__, instance)
    except (ValueError, OSError) as error:
        raise ServerError(f"a variable OTEL_* cannot be used: {error}") from None
    log.info("traces are sent to a collector, as the variables OTEL_* ask")
    return ServerTraces(tracer, link_folders)
