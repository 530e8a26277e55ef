"""The port of gRPC beside the other ports of one or several servers."""

from __future__ import annotations

import pytest

from warpcall_service.http.listen import ServerError, listen_shared, reserve
from warpcall_service.settings import Settings, SettingsError
from warpcall_service.supervisor.plan import plan_servers


def test_it_is_not_one_of_the_ports_that_servers_have_for_themselves() -> None:
    settings = Settings.load(devices="cpu", servers="2", port=8000, grpc_port=8002)

    with pytest.raises(ServerError, match=r"WARPCALL_GRPC_PORT: .* 8001 to 8002 .*, got 8002"):
        plan_servers(settings, {})


@pytest.mark.parametrize("grpc_port", [None, 0, 8003, 7999])
def test_other_ports_are_free_for_it(grpc_port: int | None) -> None:
    settings = Settings.load(devices="cpu", servers="2", port=8000, grpc_port=grpc_port)

    planned = [one.with_settings(grpc_port=grpc_port) for one in plan_servers(settings, {})]

    assert [one.overrides["port"] for one in planned] == [8001, 8002]
    assert [one.overrides["grpc_port"] for one in planned] == [grpc_port, grpc_port]


def test_a_server_of_its_own_has_no_ports_after_its_port() -> None:
    settings = Settings.load(devices="cpu", servers="1", port=8000, grpc_port=8001)

    assert len(plan_servers(settings, {})) == 1


def test_it_is_not_the_port_of_http() -> None:
    with pytest.raises(SettingsError, match="WARPCALL_GRPC_PORT: must be another port"):
        Settings.load(port=8000, grpc_port=8000)
    assert Settings.load(port=0, grpc_port=0).grpc_port == 0


def test_a_port_on_which_others_listen_is_in_use() -> None:
    with listen_shared("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(ServerError, match=f"^WARPCALL_GRPC_PORT: cannot listen on .*:{port}: "),
            reserve("127.0.0.1", port, "WARPCALL_GRPC_PORT"),
        ):
            pass
