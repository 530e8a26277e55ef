"""Authentication: find the caller of each request, by the API key or by the session that it has.

The authenticator works with a copy of keys and sessions in memory. `auth/sync.py` renews the copy,
so no request waits for the database. Requests whose key or session stops being valid are cancelled.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import time
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, replace
from typing import Protocol

from warpcall.errors import Busy, Problem, Unauthorized, Unavailable
from warpcall_service.admission import TokenBucket
from warpcall_service.auth import api_keys, session_tokens
from warpcall_service.auth.session_tokens import SessionRecord
from warpcall_service.auth.users import Snapshot
from warpcall_service.http.exchange import Exchange
from warpcall_service.identity import GUEST, LOCAL, Caller

# These routes need no key: probes of an orchestrator have none, and a session that a browser logs in
# or out of is not valid yet, or any more.
OPEN = frozenset(
    {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/login", "/logout", "/install"}
)
OPEN_FOLDERS = ("/install/",)  # the client, which has no secrets
KEY_NEEDED = "this server asks for an API key: Authorization: Bearer wc_..."
SESSION_ENDED = "the session has ended: log in again"
RETRY_S = 5  # Retry-After of a refusal because keys cannot be checked
FAILURES = 10  # wrong keys that an address may send at once
FAILURE_S = 6.0  # seconds after which the address may send one more
LOG_INS = 10  # log-ins of one user at once
LOG_IN_S = 6.0  # seconds after which the user may log in once more
USED_S = 600  # a use of a session is stored if the one before it is as long ago, in seconds
MAX_NAMES = (
    4096  # of addresses or users remembered; the one that came longest ago is forgotten first
)

log = logging.getLogger("warpcall.auth")


class Cancellable(Protocol):
    """A request that is being answered."""

    @property
    def caller(self) -> Caller: ...

    def cancel_with(self, problem: Problem) -> None:
        """End it with `problem`."""


@dataclass(frozen=True, slots=True)
class Known:
    """Who sends requests with a certain head, as long as the server uses these keys.

    Attributes:
        keys: all keys and sessions at that time.
        expires_at: of the key, in seconds since 1970; None if it does not expire.
    """

    caller: Caller
    keys: Snapshot
    expires_at: int | None


class Authenticator:
    """Authenticates requests, and cancels those whose key or session stops being valid.

    Args:
        open_folders: paths below these need no key either.
        link_folders: paths below these need a share link instead of a key.
        public_folders: these paths, and those below them, are also for callers without a key.

    Attributes:
        link_folders: as given.
        refused: number of wrong keys and share links received since the start.
        keys_unusable: why no key is accepted at present; empty if keys are accepted.
        needs_key: whether requests need a key or a session. Once there were keys, every request
            needs one, even if all keys are deleted later.
    """

    def __init__(
        self,
        keys: Snapshot,
        open_folders: tuple[str, ...] = (),
        link_folders: tuple[str, ...] = (),
        public_folders: tuple[str, ...] = (),
    ) -> None:
        self._public_folders = public_folders
        self._open_folders = OPEN_FOLDERS + open_folders
        self.link_folders = link_folders
        self.refused = 0
        self.keys_unusable = ""
        self.needs_key = bool(keys.keys)
        self._keys = keys
        self._noted_at: dict[str, int] = {}  # by session, the last use that was noted
        self._to_store: dict[str, int] = {}  # those of them that are not stored yet
        self._active: defaultdict[Caller, set[Cancellable]] = defaultdict(set)
        self._failures = _Buckets(FAILURES, FAILURE_S)
        self._log_ins = _Buckets(LOG_INS, LOG_IN_S)

    def is_open(self, path: str) -> bool:
        """Whether a route needs no key, and has no limits."""
        return path in OPEN or path.startswith(self._open_folders)

    def is_shared(self, path: str) -> bool:
        """Whether a route needs a share link instead of a key. All who come so have limits together."""
        return path.startswith(self.link_folders)

    def is_public(self, path: str) -> bool:
        """Whether a route answers callers without a key, too. These have limits together."""
        return f"{path}/".startswith(self._public_folders)

    def authenticate(self, exchange: Exchange) -> None:
        """Identify the caller of a request. Call `release` when the request has ended.

        A key in the Authorization header takes precedence over a session.

        Raises:
            Unauthorized: the request has no key, a wrong one, or one that is no longer valid, or
                the same of its session.
            Busy: too many wrong keys came from this address.
            Unavailable: keys cannot be checked at present.
        """
        if not self.needs_key:
            exchange.identify(LOCAL)
            self._active[LOCAL].add(exchange)
            return
        path = exchange.scope["path"]
        if self.is_open(path):
            return
        given = exchange.headers.get(b"authorization")
        is_public = given is None and self.is_public(path)
        if self.is_shared(path) or (is_public and self.keys_unusable):
            exchange.identify(GUEST)
            return
        if self.keys_unusable:
            raise Unavailable(self.keys_unusable, retry_after_s=RETRY_S)
        if given is None:
            try:
                caller = self._session_caller(exchange)
            except Unauthorized:
                if not is_public:
                    raise
                exchange.identify(GUEST)
                return
        else:
            scheme, _, key = given.partition(b" ")
            caller = self._key_caller(
                exchange, key.strip(b" ") if scheme.lower() == b"bearer" else b""
            )
        exchange.identify(caller)
        self._active[caller].add(exchange)

    def check_log_in(self, exchange: Exchange, key: str) -> Caller:
        """The caller whose key was given to log in.

        Raises:
            Unauthorized: the key is wrong, or no longer valid.
            Busy: too many wrong keys came from this address, or this user logs in too often.
            Unavailable: keys cannot be checked at present.
        """
        if self.keys_unusable:
            raise Unavailable(self.keys_unusable, retry_after_s=RETRY_S)
        caller = self._key_caller(exchange, key.encode())
        if wait_s := self._log_ins.take(caller.name):
            raise Busy(f"{caller.name} logs in too often", retry_after_s=wait_s)
        return caller

    def session_of(self, exchange: Exchange) -> SessionRecord | None:
        """The session that the cookie of a request opens; None if there is none."""
        token = session_tokens.token_in(exchange)
        return None if token is None else session_tokens.find(token, self._keys.sessions)

    def count_wrong_link(self, exchange: Exchange) -> None:
        """Count and log that a wrong share link came, as a wrong key is.

        Raises:
            Busy: too many wrong links or keys came from this address.
        """
        self._fail(exchange, "share link")

    def known(self, exchange: Exchange) -> Known | None:
        """Who sent this request, for later ones with the same head. None if it has to be found anew
        each time, as for sessions."""
        caller = exchange.caller
        if caller is LOCAL:
            return Known(LOCAL, self._keys, None)
        scheme, _, key = exchange.headers.get(b"authorization", b"").partition(b" ")
        record = api_keys.find(key.strip(b" "), self._keys.keys)
        if scheme.lower() != b"bearer" or record is None or record.caller != caller:
            return None
        return None if record.withdrawn else Known(caller, self._keys, record.expires_at)

    def authenticate_again(self, request: Cancellable, known: Known) -> bool:
        """Authenticate a request with the head that `known` belongs to. Call `release` at its end.

        Returns:
            False if keys or sessions have changed since, or keys cannot be checked, or the key has
            expired: `authenticate` decides then.
        """
        if known.keys is not self._keys or self.keys_unusable:
            return False
        caller = known.caller
        if caller is LOCAL:
            if self.needs_key:
                return False
        elif known.expires_at is not None and known.expires_at <= time.time():
            return False
        self._active[caller].add(request)
        return True

    def release(self, exchange: Cancellable) -> None:
        """Forget a request whose response, or problem, has been sent."""
        caller = exchange.caller
        if active := self._active.get(caller):
            active.discard(exchange)
            if not active:
                del self._active[caller]

    def update(self, keys: Snapshot, unusable: str = "") -> None:
        """Use these keys and sessions from now on, and cancel requests that they do not allow.

        Args:
            unusable: why none of the keys is accepted at present; empty if they are.
        """
        if keys is not self._keys:
            kept = self._noted_at.keys() & keys.sessions.keys()
            self._noted_at = {name: self._noted_at[name] for name in kept}
        self._keys = keys
        self.needs_key = self.needs_key or bool(keys.keys)
        self.keys_unusable = unusable if self.needs_key else ""
        if self.keys_unusable:
            for active in list(self._active.values()):
                for exchange in list(active):
                    exchange.cancel_with(Unavailable(self.keys_unusable, retry_after_s=RETRY_S))
            return
        for caller, active in list(self._active.items()):
            if refusal := self._refusal(caller):
                for exchange in list(active):
                    exchange.cancel_with(Unauthorized(refusal))

    def take_uses(self) -> dict[str, int]:
        """When sessions were used last, by their ids, in order to store it."""
        taken, self._to_store = self._to_store, {}
        return taken

    def _key_caller(self, exchange: Exchange, key: bytes) -> Caller:
        record = api_keys.find(key, self._keys.keys)
        if record is None:
            self._fail(exchange)
            raise Unauthorized("the API key is not one of this server's")
        if reason := record.refusal(time.time()):
            raise Unauthorized(f"the API key wc_{record.caller.key_id} {reason}")
        return record.caller

    def _session_caller(self, exchange: Exchange) -> Caller:
        token = session_tokens.token_in(exchange)
        if token is None:
            raise Unauthorized(KEY_NEEDED)
        found = session_tokens.find(token, self._keys.sessions)
        key = None if found is None else self._keys.keys.get(found.key_id.encode())
        if found is None or key is None:
            raise Unauthorized(SESSION_ENDED)
        caller = replace(key.caller, session_id=found.id)
        if refusal := self._refusal(caller):
            raise Unauthorized(refusal)
        now = int(time.time())
        if now >= max(found.used_at, self._noted_at.get(found.id, 0)) + USED_S:
            self._noted_at[found.id] = self._to_store[found.id] = now
        return caller

    def _refusal(self, caller: Caller) -> str:
        """Why requests of this caller are refused; empty if the key or session is still valid."""
        if caller is LOCAL:
            return KEY_NEEDED if self.needs_key else ""
        now = time.time()
        record = self._keys.keys.get(caller.key_id.encode())
        if reason := "is gone" if record is None else record.refusal(now):
            return f"the API key wc_{caller.key_id} {reason}"
        if not caller.session_id:
            return ""
        session = self._keys.sessions.get(caller.session_id)
        return SESSION_ENDED if session is None or session.expires_at <= now else ""

    def _fail(self, exchange: Exchange, what: str = "API key") -> None:
        """Count and log that a wrong key or link came. It is not logged itself: another server may
        accept the key.

        Raises:
            Busy: too many wrong ones came from this address. Valid keys from the address are still
                accepted, since many callers may share it.
        """
        self.refused += 1
        client = exchange.scope["client"]
        address = client[0] if client else ""
        if wait_s := self._failures.take(_network(address)):
            raise Busy(f"too many wrong {what}s from {address or 'here'}", retry_after_s=wait_s)
        log.warning("a wrong %s", what, extra={"id": exchange.request_id, "client": address})


def _network(address: str) -> str:
    """The address, or of an IPv6 address its /64 network: one machine may have all of these."""
    with contextlib.suppress(ValueError):  # a proxy may forward text that is no address
        if ":" in address:
            return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    return address


class _Buckets:
    """A token bucket for each name; `size` and `refill_s` are those of `TokenBucket`."""

    def __init__(self, size: int, refill_s: float) -> None:
        self._size = size
        self._refill_s = refill_s
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, name: str) -> float:
        """As `TokenBucket.take`, now and from the bucket of `name`."""
        now = time.monotonic()
        if name not in self._buckets:
            self._buckets[name] = TokenBucket(self._size, self._refill_s, now)
        self._buckets.move_to_end(name)
        if len(self._buckets) > MAX_NAMES:
            self._buckets.popitem(last=False)
        return self._buckets[name].take(now)
