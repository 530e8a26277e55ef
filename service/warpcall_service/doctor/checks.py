"""Checks of all but what computes: memory that programs share, database, clock, port, disk, TLS, keys.

Each function here makes one finding, and raises nothing that an operator can cause.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import ssl
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from warpcall_service.auth import users
from warpcall_service.auth.access import check_certificate, check_keys
from warpcall_service.auth.users import Snapshot
from warpcall_service.findings import Finding
from warpcall_service.http.listen import ServerError, listen, reserve
from warpcall_service.nodes.registry import now_ms
from warpcall_service.settings import Settings
from warpcall_service.store.database import Store, StoreError

SHM = Path("/dev/shm")  # nosec B108  # where shm_open keeps segments; nothing is made there
LEAST_FREE_BYTES = 64 << 20  # of the data folder's disk, under which the database soon fails
FEW_FREE_BYTES = 1 << 30
OF_GRPC = ("grpc", "google.protobuf")  # modules of the extra `grpc`
MOST_SKEW_S = 5.0  # from which on servers take each other for gone
DAY_S = 86_400
SOON_S = 21 * DAY_S  # before the end of a certificate
MAX_PORTS = 64
NO_CHECK_TIME = ssl.VerifyFlags(
    0x200000
)  # X509_V_FLAG_NO_CHECK_TIME; the ssl module lacks its name


class DiskUse(NamedTuple):
    """Bytes of a disk."""

    free: int
    total: int


AnswersAt = Callable[[str, int], bool]


def check_shared_memory(settings: Settings) -> Finding:
    """/dev/shm, which only callers on this machine use, under `/v2`."""
    name, wanted = "shared-memory", int(settings.user_max_shared_bytes)
    try:
        total = shutil.disk_usage(SHM).total
    except OSError as error:
        text = f"{SHM} cannot be read: {error.strerror}"
        if wanted:
            return Finding(name, "failed", text, f"mount a tmpfs at {SHM}")
        return Finding(name, "ok", f"{text}; WARPCALL_USER_MAX_SHARED_BYTES is 0, so none is used")
    if total < wanted:
        text = f"{SHM} has {total} bytes, WARPCALL_USER_MAX_SHARED_BYTES is {wanted}"
        return Finding(
            name, "warning", text, "enlarge it (docker run --shm-size), or lower the setting"
        )
    return Finding(name, "ok", f"{SHM} has {total} bytes, one user may use {wanted}")


def check_database(store: Store | StoreError) -> Finding:
    """Whether the database can be read and written, and its schema."""
    name = "database"
    if isinstance(store, StoreError):
        return Finding(name, "failed", store.reason, "correct WARPCALL_DATABASE_URL")
    try:
        if not store.exists:
            return Finding(name, "ok", f"{store.label} does not exist yet; the server creates it")
        store.check_writable()
        behind, revision = store.needs_migration(), store.revision()
    except StoreError as error:
        return Finding(
            name, "failed", error.reason, "docs/failures.md says what to do for each cause"
        )
    if behind:
        text = f"{store.label} has schema {revision or 'none'}; the server updates it at its start"
        return Finding(name, "warning", text, "make a backup, then run warpcall-server migrate")
    return Finding(name, "ok", f"{store.label} has schema {revision}")


def check_clock(store: Store | StoreError) -> Finding:
    """The difference to the database's clock, and keys that were created in the future."""
    name, advice = "clock", "set this machine's clock, best by NTP (chrony, systemd-timesyncd)"
    try:
        if isinstance(store, StoreError) or not store.exists or store.revision() is None:
            return Finding(name, "ok", "there is nothing to compare it with yet")
        with store.read() as session:
            began = time.time()
            theirs_s = session.scalars(sa.select(now_ms())).one() / 1e3
            ours_s = (began + time.time()) / 2
            created = [key.created_at for key, _ in users.list_keys(session)]
    except StoreError:
        return Finding(name, "ok", "it cannot be compared: the database cannot be read")
    ahead_s = ours_s - theirs_s
    if abs(ahead_s) > MOST_SKEW_S:
        how = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the database's clock"
        return Finding(name, "warning", f"it is {how}", advice)
    early_s = max(created, default=0) - ours_s
    if early_s > MOST_SKEW_S:
        text = f"it is behind: a key was created {early_s:.0f} s after the present time"
        return Finding(name, "warning", text, advice)
    return Finding(name, "ok", f"within {MOST_SKEW_S:g} s of the database's clock")


def check_port(settings: Settings, gpus: int, answers_at: AnswersAt) -> Finding:
    """Whether the server can listen.

    Args:
        gpus: number of GPUs, as `servers` may mean one server for each.
        answers_at: returns whether a Warpcall server answers at a host and a port.
    """
    name = "port"
    count = gpus if settings.servers == "per-gpu" else int(settings.servers)
    further = range(1, count + 1) if settings.port and count > 1 else ()
    running = []
    for port in (settings.port, *(settings.port + number for number in further)):
        try:
            with listen(settings.host, port):
                pass
        except (ServerError, OverflowError) as error:
            if not answers_at(settings.host, port):
                advice = "end the program there (ss -ltnp), or choose another WARPCALL_PORT"
                return Finding(name, "failed", str(error), advice)
            running.append(port)
    if running:
        ports = ", ".join(map(str, running))
        return Finding(
            name, "ok", f"a Warpcall server runs already on {settings.host}, port {ports}"
        )
    if trouble := _grpc_trouble(settings):
        return Finding(name, "failed", *trouble)
    what = f"port {settings.port}" if settings.port else "a free port"
    more = f" and the {len(further)} after it" if further else ""
    more += f", and {settings.grpc_port} for gRPC," if settings.grpc_port else ""
    return Finding(name, "ok", f"{what}{more} on {settings.host} can be listened on")


def _grpc_trouble(settings: Settings) -> tuple[str, str] | None:
    """Why gRPC cannot be served, and what to do; None if it can, or if it is not wanted."""
    if settings.grpc_port is None:
        return None
    if missing := [one for one in OF_GRPC if not _is_installed(one)]:
        text = f"WARPCALL_GRPC_PORT needs {' and '.join(missing)}, not installed here"
        return text, "install the server's extra `grpc`"
    try:
        with reserve(settings.host, settings.grpc_port, "WARPCALL_HOST and WARPCALL_GRPC_PORT"):
            return None
    except (ServerError, OverflowError) as error:
        advice = "end the program there (ss -ltnp), or choose another WARPCALL_GRPC_PORT"
        return str(error), advice


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def check_disk(settings: Settings) -> Finding:
    """Whether the data folder can be written, and the free space of its disk."""
    name = "disk"
    try:
        folder = settings.data_dir.expanduser().absolute()
    except RuntimeError:
        text = (
            f"WARPCALL_DATA_DIR must be a folder, got {settings.data_dir} and a user without a home"
        )
        return Finding(name, "failed", text, "set WARPCALL_DATA_DIR to an absolute path")
    there = _existing(folder)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        text = f"{there} cannot be written by this account ({os.geteuid()})"
        return Finding(name, "failed", text, "give it to the account, or set WARPCALL_DATA_DIR")
    try:
        usage = shutil.disk_usage(there)
    except OSError as error:
        return Finding(
            name, "failed", f"{there} cannot be read: {error.strerror}", "repair the disk"
        )
    text = f"{folder}: {usage.free} of {usage.total} bytes are free"
    if usage.free >= FEW_FREE_BYTES:
        return Finding(name, "ok", text)
    full = usage.free < LEAST_FREE_BYTES
    advice = "enlarge the disk, or keep less: warpcall-server prune --dry-run"
    return Finding(name, "failed" if full else "warning", text, advice)


def disk_of(settings: Settings) -> DiskUse | None:
    """The use of the data folder's disk; None if it cannot be read."""
    try:
        found = shutil.disk_usage(_existing(settings.data_dir.expanduser().absolute()))
    except (OSError, RuntimeError):
        return None
    return DiskUse(found.free, found.total)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_tls(settings: Settings) -> Finding:
    """Whether the certificate and its key can be used, and how long."""
    name = "tls"
    try:
        context = check_certificate(settings)
    except ServerError as error:
        advice = (
            "give the account the right to read both, and the key that belongs to the certificate"
        )
        return Finding(name, "failed", str(error), advice)
    if context is None:
        text = "the server itself speaks no TLS"
        if settings.is_local or settings.trusted_proxies != "none":
            return Finding(name, "ok", text)
        text += f", and listens on {settings.host}"
        return Finding(name, "warning", text, "set WARPCALL_TLS_CERT, or have a proxy speak TLS")
    try:
        end_s = _end_of(context, settings.tls_cert, checks_time=True)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or error.reason or str(error)
        return Finding(name, "failed", f"{settings.tls_cert}: {why}", "renew the certificate")
    days = int((end_s - time.time()) // DAY_S)
    text = f"{settings.tls_cert} is valid for {days} more days"
    if end_s - time.time() < SOON_S:
        return Finding(name, "warning", text, "renew the certificate, and restart the server")
    return Finding(name, "ok", text)


def certificate_end_s(settings: Settings) -> float | None:
    """The end of the certificate's time, in seconds since 1970, also if it has passed.

    None if the server speaks no TLS, or the certificate cannot be used.
    """
    try:
        context = check_certificate(settings)
        if context is None:
            return None
        return _end_of(context, settings.tls_cert, checks_time=False)
    except (ServerError, ssl.SSLError):
        return None


def check_roles(settings: Settings, keys: Snapshot | None) -> Finding:
    """Whether there are keys where they are needed, and one that may administer.

    Args:
        keys: None if they cannot be read.
    """
    name = "keys"
    if keys is None:
        return Finding(name, "failed", "they cannot be read from the database", "see the database")
    try:
        check_keys(settings, keys)
    except ServerError as error:
        advice = (
            "warpcall-server users add NAME, then warpcall-server keys create NAME --role admin"
        )
        return Finding(name, "failed", str(error), advice)
    now = time.time()
    valid = [
        key
        for key in keys.keys.values()
        if not key.withdrawn and (key.expires_at is None or key.expires_at > now)
    ]
    if not keys.keys:
        return Finding(
            name, "ok", "there are none: every program on this machine may do everything"
        )
    if not valid:
        text = f"none of {len(keys.keys)} keys is valid"
        return Finding(name, "failed", text, "warpcall-server keys create NAME --role admin")
    roles = Counter(key.caller.role for key in valid)
    text = ", ".join(f"{number} with the role {role}" for role, number in sorted(roles.items()))
    if "admin" not in roles:
        advice = "warpcall-server keys create NAME --role admin"
        return Finding(name, "warning", f"{text}; no one can see /metrics or /admin", advice)
    return Finding(name, "ok", text)


def _end_of(context: ssl.SSLContext, certificate: Path | None, *, checks_time: bool) -> float:
    """The end of a certificate's time, in seconds since 1970.

    The server's side and a client that trusts this certificate shake hands in memory: the standard
    library reads the fields of a certificate only from a connection.

    Args:
        checks_time: whether a certificate that is not valid now is an error.

    Raises:
        ssl.SSLError: it has expired, or is not valid yet.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not checks_time:
        trusting.verify_flags |= NO_CHECK_TIME
    trusting.load_verify_locations(certificate)
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(received, sent)
    server = context.wrap_bio(sent, received, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = client.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))
