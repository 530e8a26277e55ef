"""The fields of the serving core's settings: their types, defaults, bounds and descriptions."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "WARPCALL_"

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
KIB = 1 << 10
MIB = 1 << 20
STOP_MARGIN_S = 10  # after twice `drain_timeout_s` and this, the kernel ends the process
# Neither "//" nor "/..": a browser would not send a cookie for such a path.
ROOT_PATH = re.compile(r"(/[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)*")


class ServerSettings(BaseSettings):
    """The fields. `Settings` in `settings.py` reads them from variables and says what is wrong."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, strict=True, frozen=True, extra="forbid", validate_default=True
    )

    host: str = Field(
        "127.0.0.1",
        description=(
            "Address to listen on. The server refuses an address that other machines reach unless "
            "API keys exist or `insecure` is set."
        ),
    )
    port: int = Field(
        8000,
        ge=0,
        le=65_535,
        description="Port to listen on. With 0 the system chooses a free port.",
    )
    uds: Path | None = Field(
        None,
        description=(
            "Path of a Unix domain socket to listen on as well, for callers on this machine. By "
            "default there is none."
        ),
    )
    grpc_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description=(
            "Port of `host` on which to serve the Open Inference Protocol over gRPC as well. With 0 "
            "the system chooses a free port. By default gRPC is not served. It needs the extra `grpc`."
        ),
    )
    servers: str = Field(
        "1",
        pattern=r"^(per-gpu|[1-9]|[1-5]\d|6[0-4])$",
        description=(
            "Servers to start on this machine, up to 64: `per-gpu` for one on each GPU, or a "
            "number. With more than one they share `port`, and have the ports after it for "
            "themselves; with port 0 the system chooses all of them. `uds` is the first one's."
        ),
    )
    advertised_url: str | None = Field(
        None,
        pattern=r"^https?://[^?#\s@]*[^/?#\s@]$",
        max_length=300,
        description=(
            "URL at which callers and the other servers on the same database reach this server, "
            "such as `http://gpu-box:8000`. By default it is the address that it listens on; for "
            "`0.0.0.0` and `::` it is the machine's name. A server without API keys answers to the "
            "host of this URL, besides `localhost`, `127.0.0.1`, `[::1]` and `host`. Of several "
            "`servers` each has its own port in place of the port of this URL."
        ),
    )
    insecure: bool = Field(
        False,
        description=(
            "Start although no API keys exist and other machines reach the server, by its address "
            "or by a proxy (`trusted_proxies`, `root_path`). Everyone who reaches it may then use it."
        ),
    )
    require_keys: bool = Field(
        False,
        description="Refuse to start while the database has no API key, whatever the address.",
    )
    tls_cert: Path | None = Field(
        None,
        description=(
            "PEM file with the server's certificate and its chain. With it the server speaks TLS."
        ),
    )
    tls_key: Path | None = Field(
        None,
        description=(
            "PEM file with the private key of the certificate, if the key is not in `tls_cert`."
        ),
    )
    trusted_proxies: str = Field(
        "none",
        description=(
            "Addresses or networks of reverse proxies, separated by commas, such as "
            "`127.0.0.1,10.0.0.0/8`. The server takes the client's address from their "
            "`X-Forwarded-For` and `X-Forwarded-Proto` headers. It then does not start without API "
            "keys, unless `insecure` is set."
        ),
    )

    root_path: str | None = Field(
        None,
        max_length=200,
        description=(
            "Path prefix under which a reverse proxy publishes the server, such as `/warpcall`. The "
            "proxy must remove it. It limits the cookies of browsers to this prefix, and is in the "
            "URLs of `/docs` and `/install`. The server then does not start without API keys, "
            "unless `insecure` is set. By default there is none."
        ),
    )

    data_dir: Path = Field(
        Path("~/.local/share/warpcall"),
        description="Folder of the SQLite database and of the server's own files.",
    )
    database_url: SecretStr | None = Field(
        None,
        description=(
            "Database to use instead of the one in `data_dir`: "
            "`postgresql://user:password@host/name` or `sqlite:///path`."
        ),
    )

    keys_max_age_s: float = Field(
        0.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description=(
            "Seconds for which the server goes on with the API keys it has while it cannot read "
            "the database. After that every request that needs a key is answered `unavailable`. "
            "With 0 there is no limit."
        ),
    )

    session_s: float = Field(
        604_800.0,
        gt=0,
        le=31_536_000,
        allow_inf_nan=False,
        description=(
            "Seconds after which a browser that has logged in must log in again. A session ends "
            "earlier if its key expires or is revoked."
        ),
    )

    diagnose: bool = Field(
        False,
        description=(
            "If the server cannot start, also log what `warpcall-server doctor` finds wrong. The image "
            "sets it."
        ),
    )
    calls_only: bool = Field(
        False,
        description=(
            "Serve calls only: without benchmark jobs, uploads, monitors and pages, whose routes "
            "are then answered `not-found`."
        ),
    )
    devices: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda:\d+(,cuda:\d+)*)$",
        description=(
            "Devices to run on: `auto` for every CUDA device, or the CPU if there is none; `cpu`; "
            "or a list such as `cuda:0,cuda:1`."
        ),
    )
    warm: bool = Field(
        False,
        description=(
            "Compile and load the kernels of common calls on GPUs at the start of a worker, beside "
            "calls; jobs wait meanwhile."
        ),
    )
    cpu_threads: int = Field(
        0,
        ge=0,
        le=1024,
        description=(
            "Threads that the CPU lane computes with. With 0 it uses one thread for each CPU."
        ),
    )

    arena_bytes: ByteSize = Field(
        # Room for the largest body, outputs of the same size, and the reserve for small calls.
        ByteSize(2114 * MIB),  # a call of 1 GiB, as a form, with an output of 1 GiB
        ge=MIB,
        description=(
            "Bytes of shared memory for each lane. The inputs and outputs of all calls lie in it; "
            "a call that finds no room waits. One part in 32, at most 64 MiB, is a reserve that "
            "only small calls use."
        ),
    )
    max_body_bytes: ByteSize = Field(
        ByteSize(1024 * MIB),
        ge=1,
        description=(
            "Largest body of one request, in bytes; 1 MiB comes on top for what its format adds to "
            "the tensors. A larger one is answered `too-large`."
        ),
    )
    max_json_bytes: ByteSize = Field(
        ByteSize(512 * KIB),
        ge=1,
        le=512 * KIB,  # takes up to 13 ms of the event loop at once
        description=(
            "Largest JSON body of one request, and the largest size of the tensors in one JSON "
            "response, in bytes. At most 512 KiB, because calls wait while a body is parsed."
        ),
    )
    max_queue: int = Field(
        256,
        ge=1,
        description="Calls that may wait for each lane. A further call is answered `busy`.",
    )

    user_max_requests: int = Field(
        128,
        ge=1,
        description=(
            "Requests of any kind that one user may have in progress; probes are not counted. It "
            "does not apply to `local`, the name of every caller while no API keys exist."
        ),
    )
    user_max_bytes: ByteSize = Field(
        ByteSize(8192 * MIB),
        ge=1,
        description=(
            "Bytes of inputs and outputs that one user may have in progress or waiting, if these "
            "belong to more than one call."
        ),
    )
    user_requests_per_s: float = Field(
        20_000.0,
        gt=0,
        allow_inf_nan=False,
        description=(
            "Requests a second that one user may send on average. The requests of one second may "
            "come at once."
        ),
    )
    user_device_s_per_day: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description=(
            "Seconds of device time that one user may use on one day (UTC), in calls and jobs "
            "together. With 0 there is no limit."
        ),
    )

    user_max_shared_bytes: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description=(
            "Bytes of shared memory that one user on this machine may register under `/v2`. With 0 "
            "every registration is refused. With more, every caller on this machine can read and "
            "write whatever shared memory the server's account can open."
        ),
    )
    tensor_device_bytes: ByteSize = Field(
        ByteSize(8192 * MIB),
        ge=0,
        description=(
            "Bytes of stored tensors on one device. The limit is lower if nine tenths of the GPU's "
            "memory, or half of the machine's memory for the CPU lane, are less."
        ),
    )
    tensor_user_bytes: ByteSize = Field(
        ByteSize(4096 * MIB), ge=0, description="Bytes of stored tensors that one user may have."
    )
    tensor_user_count: int = Field(1024, ge=0, description="Stored tensors that one user may have.")
    tensor_ttl_s: Seconds = Field(
        600.0,
        description=(
            "Seconds after its last use until a stored tensor is deleted, if its user does not ask "
            "for another time."
        ),
    )
    tensor_max_ttl_s: Seconds = Field(
        86_400.0, description="Largest time in seconds that a user may ask for."
    )

    queue_timeout_s: Seconds = Field(
        10.0, description="Seconds that a call may wait for memory before it is answered `busy`."
    )
    call_timeout_s: Seconds = Field(
        60.0,
        description=(
            "Deadline of a call in seconds, and the longest deadline that a caller may ask for."
        ),
    )
    body_timeout_s: Seconds = Field(
        30.0,
        description=(
            "Seconds within which a client must send 64 KiB of a request or read 64 KiB of a "
            "response, or what is left of it."
        ),
    )
    min_rate_bytes_per_s: ByteSize = Field(
        ByteSize(256 << 10),
        ge=1,
        description=(
            "Bytes a second that a request and its response must move on average, after the first "
            "`body_timeout_s`."
        ),
    )
    drain_timeout_s: Seconds = Field(
        10.0, description="Seconds that calls in progress have to finish when the server stops."
    )

    until: float = Field(
        0.0,
        ge=0,
        le=1e11,
        allow_inf_nan=False,
        description=(
            "Time, in seconds since 1970, at which the server must have ended, as "
            "`SLURM_JOB_END_TIME` has it. The server starts no job that is estimated to run longer, "
            "and stops in good order before. With 0 there is none."
        ),
    )
    start_timeout_s: Seconds = Field(
        120.0, description="Seconds that a worker has to become ready."
    )
    grace_s: Seconds = Field(
        10.0,
        description=(
            "Seconds that a call, a plan or the check of a job may exceed its deadline before the "
            "worker process is killed and restarted."
        ),
    )
    max_restarts: int = Field(
        5,
        ge=1,
        description=(
            "Deaths of a worker, without a finished call between them, after which its lane counts "
            "as failed."
        ),
    )
    restart_pause_s: Seconds = Field(
        0.5,
        description=(
            "Seconds before the second restart of a worker that died without finishing a call. "
            "Each further pause is twice as long."
        ),
    )
    retry_pause_s: Seconds = Field(60.0, description="Seconds until a failed lane is tried again.")

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, given: str) -> str:
        for part in given.split(",") if given != "none" else []:
            try:
                ipaddress.ip_network(part.strip())
            except ValueError:
                raise ValueError(
                    "must be addresses or networks such as 127.0.0.1,10.0.0.0/8, or none"
                ) from None
        return given

    @field_validator("root_path")
    @classmethod
    def _check_root_path(cls, given: str | None) -> str | None:
        if given and not ROOT_PATH.fullmatch(given):
            raise ValueError(
                "must be a path such as /warpcall or /lab/warpcall, of letters, digits, -, _ and "
                "dots inside names, with a slash before each name and none at the end"
            )
        return given

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if self.grpc_port and self.grpc_port == self.port:
            raise ValueError(f"{PREFIX}GRPC_PORT: must be another port than {PREFIX}PORT")
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError(f"{PREFIX}TLS_KEY: needs {PREFIX}TLS_CERT beside it")
        return self

    @property
    def stop_s(self) -> float:
        """Seconds from the first signal to the end of the server, at most."""
        return 2 * self.drain_timeout_s + STOP_MARGIN_S

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach `host`."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
