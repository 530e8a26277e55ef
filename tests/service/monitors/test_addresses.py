"""Which addresses monitors may call, and that a name is looked up once and then believed."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import pytest

from tests.service.monitors.receiver import Receiver
from warpcall_service.monitors.addresses import may_connect, networks_of
from warpcall_service.monitors.deliveries import Attempt
from warpcall_service.monitors.sender import Sender

LOCAL = networks_of("127.0.0.0/8")
NAME = "changes.example"
REFUSED = f"'{NAME}' has an address that this server may not call"


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *(("93.184.215.14", True), ("2606:4700::1111", True), ("::ffff:8.8.8.8", True)),
        *(("127.0.0.1", False), ("10.0.0.1", False), ("172.16.0.1", False), ("::1", False)),
        *(("192.168.1.1", False), ("169.254.169.254", False), ("100.64.0.1", False)),
        *(("0.0.0.0", False), ("255.255.255.255", False), ("224.0.0.251", False)),
        *(("::", False), ("fe80::1", False), ("fd00:ec2::254", False), ("ff02::1", False)),
        *(("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False)),
    ],
)
def test_only_public_addresses_may_be_called_and_only_with_tls(address: str, public: bool) -> None:
    given = ipaddress.ip_address(address)

    assert may_connect(given, [], encrypted=True) is public
    assert may_connect(given, [], encrypted=False) is False
    assert may_connect(given, [ipaddress.ip_network(f"{address}")], encrypted=False) is True


def sent(port: int) -> tuple[int | None, str]:
    """What becomes of an attempt to call a name."""
    url = f"http://{NAME}:{port}/hook"
    return asyncio.run(Sender(LOCAL).send(Attempt(1, "a" * 32, 1, "b" * 12, url, "s", b"{}")))


def looked_up(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Answer look-ups of the name with these addresses, one after the other."""
    real, asked = socket.getaddrinfo, list[str]()

    def getaddrinfo(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host != NAME:
            return real(host, port, *rest, **more)
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_a_name_that_changes_after_the_check_is_connected_where_it_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Receiver() as receiver:
        asked = looked_up(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])

        assert sent(receiver.port) == (204, "")
        assert asked == [NAME]
        assert receiver.calls[0].headers["host"] == f"{NAME}:{receiver.port}"


def test_one_forbidden_address_of_a_name_is_enough_to_refuse_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Receiver() as receiver:
        looked_up(monkeypatch, ["127.0.0.1", "10.0.0.1"])

        assert sent(receiver.port) == (None, REFUSED)
        assert receiver.calls == []
