"""Authentication: find the caller of each request, and cancel requests whose key stops being valid.

The authenticator works with a copy of the keys in memory. `auth/sync.py` renews the copy, so no
request waits for the database.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import time
from collections import OrderedDict, defaultdict

from warpcall.errors import Busy, Unauthorized, Unavailable
from warpcall_service.auth.api_keys import find
from warpcall_service.auth.users import Snapshot
from warpcall_service.http.exchange import Exchange
from warpcall_service.identity import LOCAL

# These routes need no key: probes of an orchestrator have none.
OPEN = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/login"})
OPEN_FOLDER = "/static/"  # the files that the page to log in loads
KEY_NEEDED = "this server asks for an API key: Authorization: Bearer wc_..."
RETRY_S = 5  # Retry-After of a refusal because keys cannot be checked
FAILURES = 10  # wrong keys that an address may send at once
FAILURE_S = 6.0  # seconds after which the address may send one more
MAX_ADDRESSES = 4096  # remembered; the one that failed longest ago is forgotten first

log = logging.getLogger("warpcall.auth")


def is_open(path: str) -> bool:
    """Whether a route needs no key."""
    return path in OPEN or path.startswith(OPEN_FOLDER)


class Authenticator:
    """Authenticates requests, and cancels those whose key stops being valid.

    Attributes:
        refused: number of wrong keys received since the start.
        keys_unusable: why no key is accepted at present; empty if keys are accepted.
    """

    def __init__(self, keys: Snapshot) -> None:
        self.refused = 0
        self.keys_unusable = ""
        self._keys = keys
        # Once there were keys, every request needs one, even if all keys are deleted later.
        self._needs_key = bool(keys.keys)
        self._active: defaultdict[str, set[Exchange]] = defaultdict(set)
        self._failures = _Failures()

    def authenticate(self, exchange: Exchange) -> None:
        """Identify the caller of a request. Call `release` when the request has ended.

        Raises:
            Unauthorized: the request has no key, a wrong one, or one that is no longer valid.
            Busy: too many wrong keys came from this address.
            Unavailable: keys cannot be checked at present.
        """
        if not self._needs_key:
            exchange.identify(LOCAL)
            self._active[LOCAL.key_id].add(exchange)
            return
        if is_open(exchange.scope["path"]):
            return
        if self.keys_unusable:
            raise Unavailable(self.keys_unusable, retry_after_s=RETRY_S)
        given = exchange.headers.get(b"authorization")
        if given is None:
            raise Unauthorized(KEY_NEEDED)
        scheme, _, key = given.partition(b" ")
        record = find(key.strip(b" "), self._keys.keys)
        if record is None or scheme.lower() != b"bearer":
            self._fail(exchange)
            raise Unauthorized("the API key in Authorization: Bearer is not one of this server's")
        if reason := record.refusal(time.time()):
            raise Unauthorized(f"the API key wc_{record.caller.key_id} {reason}")
        exchange.identify(record.caller)
        self._active[record.caller.key_id].add(exchange)

    def release(self, exchange: Exchange) -> None:
        """Forget a request whose response, or problem, has been sent."""
        key_id = exchange.caller.key_id
        if active := self._active.get(key_id):
            active.discard(exchange)
            if not active:
                del self._active[key_id]

    def update(self, keys: Snapshot, unusable: str = "") -> None:
        """Use these keys from now on, and cancel running requests whose key is no longer valid.

        Args:
            unusable: why none of the keys is accepted at present; empty if they are.
        """
        self._keys = keys
        self._needs_key = self._needs_key or bool(keys.keys)
        self.keys_unusable = unusable if self._needs_key else ""
        if self.keys_unusable:
            for active in list(self._active.values()):
                for exchange in list(active):
                    exchange.cancel_with(Unavailable(self.keys_unusable, retry_after_s=RETRY_S))
            return
        for key_id, active in list(self._active.items()):
            if refusal := self._refusal(key_id):
                for exchange in list(active):
                    exchange.cancel_with(Unauthorized(refusal))

    def _refusal(self, key_id: str) -> str:
        """Why requests with this key are cancelled; empty if the key is still valid."""
        if key_id == LOCAL.key_id:
            return KEY_NEEDED if self._needs_key else ""
        record = self._keys.keys.get(key_id.encode())
        reason = "is gone" if record is None else record.refusal(time.time())
        return reason and f"the API key wc_{key_id} {reason}"

    def _fail(self, exchange: Exchange) -> None:
        """Count and log that a wrong key came. The key itself is not logged: another server may
        accept it.

        Raises:
            Busy: too many wrong keys came from this address. Valid keys from the address are still
                accepted, since many callers may share it.
        """
        self.refused += 1
        client = exchange.scope["client"]
        address = client[0] if client else ""
        wait_s = self._failures.record(address)
        if wait_s:
            raise Busy(f"too many wrong API keys from {address or 'here'}", retry_after_s=wait_s)
        log.warning("a wrong API key", extra={"id": exchange.request_id, "client": address})


class _Failures:
    """A token bucket of allowed failures for each IPv4 address and each IPv6 /64 network."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()  # when each bucket is full again

    def record(self, address: str) -> float:
        """Take one token; 0, or if there was none the seconds until there is one."""
        with contextlib.suppress(ValueError):  # a proxy may forward text that is no address
            if ":" in address:
                address = str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
        now = time.monotonic()
        full_at = max(self._full_at.get(address, now), now) + FAILURE_S
        if full_at - now > FAILURES * FAILURE_S:
            return full_at - now - FAILURES * FAILURE_S
        self._full_at[address] = full_at
        self._full_at.move_to_end(address)
        if len(self._full_at) > MAX_ADDRESSES:
            self._full_at.popitem(last=False)
        return 0.0
