"""The server's address and the API key, from arguments, the environment and the profile."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import re
import socket
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from warpcall._profile import Profile, read_profile
from warpcall.errors import InvalidInput

DEFAULT_URL = "http://127.0.0.1:8000"
UNIX = "unix://"
# Names that the public DNS has none of; the last two are those of Services in Kubernetes.
PRIVATE_NAMES = (".localhost", ".svc", ".svc.cluster.local")
PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
MAX_URLS = 64  # that a client may be given
BETWEEN_URLS = re.compile(r"\s*,\s*(?=(?:https?|unix)://|$)")  # a path may have a comma, too


@dataclass(frozen=True, slots=True)
class Config:
    """A checked address and key.

    Attributes:
        url: the address, without a final slash.
        authority: the value of the Host header.
        prefix: the path of the url, which precedes every path of the API.
        api_key: the key; None if the server needs none.
        direct: whether the client's own sockets reach the server: over plain HTTP, with no proxy.
        path: the path of the server's Unix domain socket; None if it has a host and a port.
    """

    url: str
    host: str
    port: int
    authority: str
    prefix: str
    api_key: str | None
    direct: bool
    path: str | None = None

    @property
    def scheme(self) -> str:
        """https or http."""
        return urlsplit(self.url).scheme

    @property
    def address(self) -> tuple[str, int] | str:
        """The address to connect to: host and port, or the path of a Unix domain socket."""
        return self.path or (self.host, self.port)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that the environment names.

    Attributes:
        url: its address.
        auth: a user and a password, if it asks for them.
        variable: of the environment, such as HTTPS_PROXY.
    """

    url: str
    auth: tuple[str, str] | None
    variable: str

    @property
    def shown(self) -> str:
        """What errors say of it, without the password."""
        return f"the proxy {self.url} (from {self.variable})"


def configure(url: str | Sequence[str] | None, api_key: str | None) -> tuple[Config, ...]:
    """Complete the addresses and the key from the environment and the profile, and check them.

    What is None is taken from WARPCALL_URL and WARPCALL_API_KEY, then from the profile. The
    profile's key is sent only to the profile's servers. Several addresses are a sequence, or one
    text with commas between them.

    Raises:
        InvalidInput: an address is not valid, the key has characters that no header can carry or
            would be exposed, or the profile cannot be used.
    """
    if url is not None and not isinstance(url, str):
        url = _joined(url)
    url = url or os.environ.get("WARPCALL_URL")
    api_key = api_key or os.environ.get("WARPCALL_API_KEY")
    profile = Profile() if url and api_key else read_profile()
    profile_urls = split_urls(profile.url or DEFAULT_URL)
    urls = split_urls(url) if url else profile_urls
    if not api_key:
        api_key = profile.api_key if set(urls) <= set(profile_urls) else None
    if api_key is not None and not (_is_plain(api_key) and api_key == api_key.strip()):
        raise InvalidInput(
            "api_key must be printable ASCII without spaces around it", field="api_key"
        )
    if len(urls) > MAX_URLS:
        raise InvalidInput(
            f"url must name at most {MAX_URLS} servers, got {len(urls)}", field="url"
        )
    return tuple(configure_one(one, api_key) for one in urls)


def split_urls(text: str) -> list[str]:
    """The addresses in a text with commas between them, each once, without a final slash."""
    found = [url.rstrip("/") for url in BETWEEN_URLS.split(text) if url]
    return list(dict.fromkeys(found)) or [text]


def configure_one(url: str, api_key: str | None) -> Config:
    """Check one address, to which this key is to be sent.

    Over plain HTTP anyone on the way could read the key. It is therefore sent only to this machine
    or to a private network: a loopback or private address, a name without a dot, such as a
    container's, or the name of a Service in Kubernetes.

    Raises:
        InvalidInput: the address is not valid, or the key would be exposed.
    """
    if url.startswith(UNIX):
        path = _socket_path(url)
        return Config(url, "", 0, "localhost", "", api_key, direct=True, path=path)
    parts, port = _split(url)
    host = parts.hostname or ""
    if api_key is not None and parts.scheme == "http" and not _is_near(host):
        raise InvalidInput(
            f"an API key is sent to {host} only over https, or through a tunnel to 127.0.0.1, "
            f"got {url}",
            field="api_key",
        )
    proxied = _proxy_of("http", host, port) is not None
    direct = parts.scheme == "http" and sys.platform != "win32" and not proxied
    return Config(
        url=url,
        host=host,
        port=port,
        authority=parts.netloc,
        prefix=parts.path,
        api_key=api_key,
        direct=direct,
    )


def configure_node(given: Config, url: str) -> Config | None:
    """The address of a server that the given one lists; None if this client must not use it.

    An address that is less protected than the given one is not used: plain HTTP after https. Nor is
    a loopback address unless the given server is on this machine: there it would be another
    machine's, which forgot to say its name.
    """
    if url.startswith(UNIX):
        return None
    try:
        found = configure_one(url.rstrip("/"), given.api_key)
    except InvalidInput:
        return None
    if given.path is None and given.scheme == "https" and found.scheme != "https":
        return None
    is_here = given.path is not None or is_loopback(given.host)
    return None if is_loopback(found.host) and not is_here else found


def _joined(urls: Sequence[str]) -> str:
    if not urls or not all(isinstance(url, str) and url for url in urls):
        raise InvalidInput(f"url must name servers, got {urls!r:.60}", field="url")
    return ",".join(urls)


def _split(url: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        port = parts.port
        ours = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
        if not ours or parts.query or parts.fragment or not _is_plain(url) or " " in url:
            raise ValueError
    except ValueError:
        raise InvalidInput(
            "url must be like http://host:8000, https://host or unix:///run/warpcall.sock, "
            f"got {url!r}",
            field="url",
        ) from None
    return parts, port or (443 if parts.scheme == "https" else 80)


def _socket_path(url: str) -> str:
    """The absolute path that follows unix://. Nothing in it is escaped."""
    path = url[len(UNIX) :]
    if not path.startswith("/") or "\0" in path or not hasattr(socket, "AF_UNIX"):
        raise InvalidInput(
            f"url must be like unix:///run/warpcall.sock, on a system that has them, got {url!r}",
            field="url",
        )
    return path


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_near(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(PRIVATE_NAMES)
    return address.is_loopback or address.is_private or address.is_link_local


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def proxy_for(config: Config) -> Proxy | None:
    """The proxy that the environment names for this server, or None.

    Raises:
        InvalidInput: the environment names a proxy whose address is not valid.
    """
    found = _proxy_of(config.scheme, config.host, config.port)
    if found is None:
        return None
    variable, given = found
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        port = "" if parts.port is None else f":{parts.port}"
        if not parts.hostname or parts.scheme not in PROXY_SCHEMES or not _is_plain(parts.hostname):
            raise ValueError
    except ValueError:  # the message does not quote it: it may hold a password
        raise InvalidInput(
            f"{variable} must name a proxy such as http://host:3128 or socks5://host:1080",
            field="proxy",
        ) from None
    if parts.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise InvalidInput(
            f"{variable} names a SOCKS proxy, for which the package socksio must be installed",
            field="proxy",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    auth = None
    if parts.username or parts.password:
        auth = (unquote(parts.username or ""), unquote(parts.password or ""))
    return Proxy(f"{parts.scheme}://{host}{port}", auth, variable)


def sender_of(config: Config) -> str:
    """Who may have written an answer that does not look like the server's own."""
    proxy = None if config.direct else proxy_for(config)
    return "the server" if proxy is None else f"the server, or {proxy.shown},"


def _proxy_of(scheme: str, host: str, port: int) -> tuple[str, str] | None:
    """The proxy's url as the environment has it, after the variable that names it.

    Loopback addresses have none.
    """
    if is_loopback(host):
        return None
    known = urllib.request.getproxies()
    key = next((key for key in (scheme, "all") if known.get(key)), None)
    if key is None or _bypasses(host, port, known.get("no", "")):
        return None
    names = (f"{key}_proxy", f"{key}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), "the system's settings")
    return variable, known[key]


def _bypasses(host: str, port: int, no_proxy: str) -> bool:
    """Whether NO_PROXY, or else the settings of the system, exclude a server from the proxy.

    Entries are names with all names below them, addresses, networks such as 10.0.0.0/8, and * for
    all. A port may follow a name or an address.
    """
    if urllib.request.proxy_bypass(host) or urllib.request.proxy_bypass(f"{host}:{port}"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in no_proxy.split(","):
        text = entry.strip().removesuffix(f"]:{port}").strip("[]")
        with contextlib.suppress(ValueError):
            if address in ipaddress.ip_network(text, strict=False):
                return True
    return False
