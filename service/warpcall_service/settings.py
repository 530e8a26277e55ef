"""Every setting of the server, in one strict model read from WARPCALL_* variables."""

from __future__ import annotations

import difflib
import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "WARPCALL_"
CLIENT_VARIABLES = frozenset({"WARPCALL_URL", "WARPCALL_API_KEY"})  # the SDK's, not ours

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
MIB = 1 << 20


class SettingsError(ValueError):
    """Settings that the server refuses to start with; the message is for its operator."""


class Settings(BaseSettings):
    """What an operator may choose. Sizes also read as "2GiB" or "512MB"."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, strict=True, frozen=True, extra="forbid", validate_default=True
    )

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65_535, description="0 lets the system choose")
    uds: Path | None = Field(
        None, description="a Unix domain socket to listen on as well, for callers on this machine"
    )
    insecure: bool = Field(
        False, description="serve others than this machine, although no key tells who they are"
    )
    tls_cert: Path | None = Field(None, description="PEM file of the certificate and its chain")
    tls_key: Path | None = Field(None, description="PEM file of its key, if not in tls_cert")
    trusted_proxies: str = Field(
        "none",
        description="addresses or networks, such as 127.0.0.1,10.0.0.0/8, whose X-Forwarded-For "
        "and X-Forwarded-Proto are believed",
    )

    data_dir: Path = Field(
        Path("~/.local/share/warpcall"), description="where the database lies, unless it is named"
    )
    database_url: SecretStr | None = Field(
        None, description="postgresql://user:password@host/name, or sqlite:///path"
    )

    devices: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda:\d+(,cuda:\d+)*)$",
        description="auto: every CUDA device, or else the CPU; or cpu; or such as cuda:0,cuda:1",
    )
    warm: bool = Field(
        False, description="a lane is ready once the kernels of common calls are compiled"
    )
    cpu_threads: int = Field(0, ge=0, le=1024, description="of the cpu lane; 0: one per CPU")

    arena_bytes: ByteSize = Field(
        ByteSize(2048 * MIB), ge=MIB, description="shared memory of each lane, for all its calls"
    )
    max_body_bytes: ByteSize = Field(ByteSize(1024 * MIB), ge=1, description="of one request")
    max_json_bytes: ByteSize = Field(ByteSize(16 * MIB), ge=1, description="of one JSON request")
    max_queue: int = Field(256, ge=1, description="calls that may wait for each lane")

    user_max_requests: int = Field(128, ge=1, description="that one user has in flight")
    user_max_bytes: ByteSize = Field(
        ByteSize(8192 * MIB),
        ge=1,
        description="of inputs and outputs that one user has in flight, in more than one call",
    )
    user_requests_per_s: float = Field(
        20_000.0, gt=0, allow_inf_nan=False, description="of one user; a second's worth at once"
    )

    user_max_shared_bytes: ByteSize = Field(
        ByteSize(8192 * MIB),
        ge=0,
        description="of shared memory that a local user has registered under /v2; 0 refuses any",
    )
    tensor_device_bytes: ByteSize = Field(
        ByteSize(8192 * MIB), ge=0, description="that tensors kept on one device may take"
    )
    tensor_user_bytes: ByteSize = Field(
        ByteSize(4096 * MIB), ge=0, description="that the tensors of one user may take"
    )
    tensor_user_count: int = Field(1024, ge=0, description="tensors that one user may keep")
    tensor_ttl_s: Seconds = Field(600.0, description="after its last use, for a kept tensor")
    tensor_max_ttl_s: Seconds = Field(86_400.0, description="the most that one may ask for")

    queue_timeout_s: Seconds = Field(10.0, description="wait for memory before the answer is busy")
    call_timeout_s: Seconds = Field(60.0, description="deadline of a call, and the most to ask for")
    body_timeout_s: Seconds = Field(30.0, description="without progress of an upload")
    drain_timeout_s: Seconds = Field(10.0, description="for calls under way when the server stops")

    start_timeout_s: Seconds = Field(120.0, description="for a lane until it is ready")
    grace_s: Seconds = Field(
        10.0, description="past its deadline, before a running call costs its lane the life"
    )
    max_restarts: int = Field(5, ge=1, description="deaths without a finished call between them")
    restart_pause_s: Seconds = Field(
        0.5, description="before the second such restart; doubles with each"
    )
    retry_pause_s: Seconds = Field(60.0, description="before a failed lane is tried again")

    job_max_cases: int = Field(1000, ge=1, description="of one job")
    job_wall_s: Seconds = Field(7200.0, description="that one job may run")
    job_stall_s: Seconds = Field(300.0, description="without progress, compiling among it")
    job_block_s: Seconds = Field(10.0, description="that a job may keep calls off its device")
    job_memory_bytes: ByteSize = Field(
        ByteSize(0), ge=0, description="of a job's processes; 0: half of this machine's memory"
    )
    job_modules: str = Field(
        "none",
        pattern=r"^[A-Za-z_][\w.]*(,[A-Za-z_][\w.]*)*$",
        description="Python modules, separated by commas, with more implementations",
    )
    user_max_jobs: int = Field(1000, ge=1, description="of one user that are not finished")
    user_running_jobs: int = Field(2, ge=1, description="of one user at a time")
    user_max_streams: int = Field(32, ge=1, description="of job events, open at a time by one user")

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """The settings of this environment; `overrides` (as from the command line) win.

        Raises:
            SettingsError: a misspelt variable, or a value out of range.
        """
        known = {PREFIX + name.upper() for name in cls.model_fields}
        for variable in os.environ:
            if variable.upper().startswith(PREFIX) and variable.upper() not in (
                known | CLIENT_VARIABLES
            ):
                near = difflib.get_close_matches(variable.upper(), sorted(known), 1, 0.0)
                raise SettingsError(f"{variable} is no setting; is it {near[0]} that is meant?")
        try:
            return cls(**overrides)
        except ValueError as error:
            raise SettingsError(_first_line(error)) from None

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

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError(f"{PREFIX}TLS_KEY: needs {PREFIX}TLS_CERT beside it")
        return self

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _first_line(error: ValueError) -> str:
    """What pydantic found, as one sentence a line, each beginning with the variable."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for fault in error.errors():
        name = "".join(f"{PREFIX}{str(part).upper()}: " for part in fault["loc"])
        got = f", got {fault['input']!r}" if fault["loc"] else ""
        lines.append(f"{name}{fault['msg'].removeprefix('Value error, ')}{got}")
    return "\n".join(lines)
