"""The gate: whose key comes with a request, and who has to go because his no longer counts.

It works with a copy of the keys, which `auth/sync.py` renews: no request waits for the database.
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

# To everyone: probes have no keys.
OPEN = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
KEY_NEEDED = "this server asks for an API key: Authorization: Bearer wc_..."
RETRY_S = 5  # when keys that cannot be checked may be tried again
FAILURES = 10  # wrong keys in a row that an address may try
FAILURE_S = 6.0  # after which it may try one more
MAX_ADDRESSES = 4096  # remembered; the one that failed longest ago gives way

log = logging.getLogger("warpcall.gate")


class Gate:
    """Lets requests in and, when a key stops, out again.

    Attributes:
        refused: wrong keys so far.
        shut: why no key admits anyone at present; empty if keys do.
    """

    def __init__(self, keys: Snapshot) -> None:
        self.refused = 0
        self.shut = ""
        self._keys = keys
        self._closed = bool(keys.keys)  # once there were keys it stays so, whatever happens to them
        self._inside: defaultdict[str, set[Exchange]] = defaultdict(set)
        self._failures = _Failures()

    def admit(self, exchange: Exchange) -> None:
        """Find out who calls, and remember him until `leave`.

        Raises:
            Unauthorized: no key, a wrong one, or one that no longer counts.
            Busy: too many wrong ones.
            Unavailable: keys cannot be checked at present.
        """
        if not self._closed:
            exchange.identify(LOCAL)
            self._inside[LOCAL.key_id].add(exchange)
            return
        if exchange.scope["path"] in OPEN:
            return
        if self.shut:
            raise Unavailable(self.shut, retry_after_s=RETRY_S)
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
        self._inside[record.caller.key_id].add(exchange)

    def leave(self, exchange: Exchange) -> None:
        """Forget a request that has its answer, or its problem."""
        key_id = exchange.caller.key_id
        if inside := self._inside.get(key_id):
            inside.discard(exchange)
            if not inside:
                del self._inside[key_id]

    def update(self, keys: Snapshot, shut: str = "") -> None:
        """Work with these keys, and send away who is here with one that no longer counts.

        Args:
            shut: why none of them counts at present, if that is so.
        """
        self._keys = keys
        self._closed = self._closed or bool(keys.keys)
        self.shut = shut if self._closed else ""
        if self.shut:
            for inside in list(self._inside.values()):
                for exchange in list(inside):
                    exchange.cancel_with(Unavailable(self.shut, retry_after_s=RETRY_S))
            return
        for key_id, inside in list(self._inside.items()):
            if refusal := self._refusal(key_id):
                for exchange in list(inside):
                    exchange.cancel_with(Unauthorized(refusal))

    def _refusal(self, key_id: str) -> str:
        """Why who came with this key has to go; empty if he may stay."""
        if key_id == LOCAL.key_id:
            return KEY_NEEDED if self._closed else ""
        record = self._keys.keys.get(key_id.encode())
        reason = "is gone" if record is None else record.refusal(time.time())
        return reason and f"the API key wc_{key_id} {reason}"

    def _fail(self, exchange: Exchange) -> None:
        """Count and log a wrong key, but not the key: it may be right elsewhere.

        Raises:
            Busy: this address has tried too many. Right keys are let in all the same, since many
                callers may share an address.
        """
        self.refused += 1
        client = exchange.scope["client"]
        address = client[0] if client else ""
        wait_s = self._failures.note(address)
        if wait_s:
            raise Busy(f"too many wrong API keys from {address or 'here'}", retry_after_s=wait_s)
        log.warning("a wrong API key", extra={"id": exchange.request_id, "client": address})


class _Failures:
    """A bucket of allowed failures for each address, IPv6 ones by network."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()  # when each bucket is full again

    def note(self, address: str) -> float:
        """Take one from the bucket; seconds until there is another if it is empty, else 0."""
        with contextlib.suppress(ValueError):  # what a proxy forwards may be no address
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
