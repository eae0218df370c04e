"""Choice of ports and addresses."""

import socket
from collections.abc import Iterator

import pytest

from launcher import address
from launcher.address import Address
from launcher.errors import LaunchError

LOCAL_HOSTS = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((LOCAL_HOSTS, 0)) as server:
        yield server.getsockname()[1]


def choose(*, port: int | None = None, environment: dict[str, str] | None = None) -> Address:
    return address.choose(host=LOCAL_HOSTS, port=port, environment=environment or {})


def test_a_port_with_a_listener_is_not_free(taken: int) -> None:
    assert not address.is_free(host=LOCAL_HOSTS, port=taken)


def test_a_port_on_which_a_connection_just_ended_is_free() -> None:
    with socket.create_server((LOCAL_HOSTS, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOCAL_HOSTS, port)) as client, server.accept()[0] as accepted:
            accepted.close()
            assert client.recv(1) == b""
    assert address.is_free(host=LOCAL_HOSTS, port=port)


def test_the_next_port_is_used_when_the_default_is_in_use(taken: int) -> None:
    chosen = address.prefer_port(host=LOCAL_HOSTS, port=taken)
    assert taken < chosen < taken + address.NEIGHBOURS or address.is_free(host=LOCAL_HOSTS, port=chosen)
    assert chosen != taken


def test_two_checkouts_have_different_default_ports() -> None:
    assert address.usual_port(base=20000, key="/a/.run") != address.usual_port(base=20000, key="/b/.run")


def test_an_address_of_another_machine_is_rejected_in_one_sentence() -> None:
    with pytest.raises(LaunchError, match=r"^Cannot listen on 192\.0\.2\.1 port 8000"):
        address.is_free(host="192.0.2.1", port=8000)


def test_a_requested_port_that_is_in_use_is_rejected(taken: int) -> None:
    with pytest.raises(LaunchError, match=f"^Port {taken} on 127.0.0.1 is in use"):
        choose(port=taken)


def test_the_variable_requests_a_port_like_the_option(taken: int) -> None:
    with pytest.raises(LaunchError, match=f"^Port {taken} on 127.0.0.1 is in use"):
        choose(environment={"PORT": str(taken)})


def test_the_option_takes_precedence_over_the_variable(taken: int) -> None:
    free = address.any_free_port()
    assert choose(port=free, environment={"PORT": str(taken)}).port == free


@pytest.mark.parametrize("text", ["http", "0", "70000", "-1"])
def test_a_variable_that_is_not_a_port_is_rejected(text: str) -> None:
    with pytest.raises(LaunchError, match=r"^PORT must be a number"):
        choose(environment={"PORT": text})


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("box.example", "http://box.example:8000"),
    ],
)
def test_the_url_works_for_clients_on_this_machine(host: str, url: str) -> None:
    assert Address(host=host, port=8000).url == url


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("127.0.0.1", None),
        ("::1", None),
        ("0.0.0.0", None),
        ("10.0.0.7", "localhost,127.0.0.1,[::1],10.0.0.7"),
        ("fd00::7", "localhost,127.0.0.1,[::1],[fd00::7]"),
    ],
)
def test_the_requested_address_is_an_allowed_host(host: str, names: str | None) -> None:
    assert address.allowed_hosts(host=host) == names
