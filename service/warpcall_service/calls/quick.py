"""Calls that repeat an earlier call of their connection, without parser or ASGI messages.

`http/quick.py` says which requests come here. A later call only needs memory at once: whatever would
have to wait for that takes the ordinary way. The limits of its user, the check of its key, the fair
order of lanes, deadlines, metrics and the log are the same.
"""

from __future__ import annotations

import time

from warpcall.errors import Problem
from warpcall_service.auth.rate_limits import Account
from warpcall_service.calls.call_template import CallFormat, CallTemplate, Services
from warpcall_service.calls.repeated_call import RepeatedCall
from warpcall_service.http.exchange import JOIN_BYTES, Exchange
from warpcall_service.http.quick import QuickFeed, Running
from warpcall_service.http.request_connection import RequestConnection
from warpcall_service.http.traceparent import NAME as TRACEPARENT
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.plan import Plan

# Headers with which a request always takes the ordinary way.
NEVER = (b"x-request-id", b"expect", b"transfer-encoding", b"content-encoding", b"cookie")
# A larger body is read in so many windows, one after the other, that other clients would wait.
QUICK_BYTES = 4 << 20
QUICK_OUTPUT_BYTES = 1 << 20  # calls with larger outputs take the ordinary way


class QuickCalls(Services):
    """Prepares calls."""

    __slots__ = ()

    def prepare(self, exchange: Exchange, plan: Plan, format_: CallFormat) -> None:
        """Let later requests that are like this one take the short way, if they may."""
        received, headers = exchange.connection, exchange.headers
        if (
            not isinstance(received, RequestConnection)
            or exchange.declared is None
            or exchange.declared > QUICK_BYTES
            or exchange.scope["http_version"] != "1.1"
            or not received.keeps_alive
            or plan.output_nbytes > QUICK_OUTPUT_BYTES
            or len(format_.head) > JOIN_BYTES
            or any(name in headers for name in NEVER)
        ):
            return
        known = self.authenticator.known(exchange)
        if known is not None:
            connection = received.connection
            template = CallTemplate(self, exchange, connection, known, plan, format_)
            traceparent = exchange.traceparent if TRACEPARENT in headers else None
            connection.quick.remember(PreparedCall(template), traceparent)


class PreparedCall:
    """Implements `http.quick.Repeatable` for the calls of one template."""

    def __init__(self, template: CallTemplate) -> None:
        self.nbytes = template.nbytes
        self.json_nbytes = template.format.json_nbytes
        self.request_id = template.format.request_id
        self._template = template

    def begin(
        self, feed: QuickFeed, data: memoryview, request_id: bytes, traceparent: bytes
    ) -> Running | None:
        """As `http.quick.Repeatable.begin`."""
        template = self._template
        services, user = template.services, template.known.caller.name
        began = time.monotonic()
        call = RepeatedCall(template, feed, began, request_id, traceparent)
        if not services.authenticator.authenticate_again(call, template.known):
            return None
        slot: Slot | None = None
        account: Account | None = None
        try:
            find_memory = template.format.find_memory
            memory = None if find_memory is None else find_memory()
            slot = services.engine.acquire_at_once(template.slot_nbytes, user)
            if slot is not None:
                slot.view[: len(data)] = data
                account = services.limits.acquire(user, began)
                call.start(slot, account, len(data), memory)
                return call
        except Problem:  # the ordinary way meets the same problem, and answers with it
            if account is not None:
                account.give_back()
        services.authenticator.release(call)
        if slot is not None:
            slot.release()
        return None
