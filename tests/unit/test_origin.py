"""Origin of a request: the client's address as seen by trusted proxies, never a header of the client."""

import pytest

from core.http.asgi import Message, Receive, Scope, Send, with_request_id
from core.origin import Origin, origin, origin_of, use_origin


def address_of(peer: str, forwarded_for: str = "", *, trusted_proxies: int = 0) -> str:
    return origin_of(
        peer=peer, forwarded_for=forwarded_for, agent="", request_id="", trusted_proxies=trusted_proxies
    ).address


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "proxies", "address"),
    [
        ("203.0.113.9", "", 0, "203.0.113.9"),
        ("203.0.113.9", "198.51.100.1", 0, "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1", 1, "198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1", 1, "198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1, 10.0.0.2", 2, "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1", 3, "198.51.100.1"),
        ("10.0.0.1", "", 1, "10.0.0.1"),
        ("::ffff:203.0.113.9", "", 0, "203.0.113.9"),
        ("10.0.0.1", "not an address", 1, ""),
        ("testclient", "", 0, ""),
    ],
)
def test_only_addresses_from_trusted_proxies_are_used(
    peer: str, forwarded_for: str, proxies: int, address: str
) -> None:
    assert address_of(peer, forwarded_for, trusted_proxies=proxies) == address


async def test_the_line_of_the_proxy_is_used_instead_of_the_clients_line() -> None:
    found = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(origin().address)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None: ...

    lines = [(b"x-forwarded-for", b"10.1.2.3"), (b"x-forwarded-for", b"198.51.100.1")]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": lines, "client": ("10.0.0.1", 1234)}
    await with_request_id(app, trusted_proxies=1)(scope, receive, send)
    assert found == ["198.51.100.1"]


def test_a_long_user_agent_is_truncated() -> None:
    made = origin_of(peer="", forwarded_for="", agent="a" * 1000, request_id="", trusted_proxies=0)
    assert made.agent == "a" * 200


def test_an_origin_applies_inside_its_block_only() -> None:
    assert origin() == Origin()
    with use_origin(Origin(address="203.0.113.9")):
        assert origin().address == "203.0.113.9"
    assert origin() == Origin()
