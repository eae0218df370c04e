"""Where a request comes from is what our own proxies have seen, and nothing that a client wrote."""

import pytest

from kernel.origin import Origin, coming_from, origin, sender


def came(peer: str, forwarded_for: str = "", *, trusted_proxies: int = 0) -> str:
    """The address of a request."""
    return sender(
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
def test_only_what_trusted_proxies_wrote_counts(peer: str, forwarded_for: str, proxies: int, address: str) -> None:
    assert came(peer, forwarded_for, trusted_proxies=proxies) == address


def test_a_long_agent_is_cut() -> None:
    made = sender(peer="", forwarded_for="", agent="a" * 1000, request_id="", trusted_proxies=0)
    assert made.agent == "a" * 200


def test_an_origin_holds_inside_of_its_block() -> None:
    assert origin() == Origin()
    with coming_from(Origin(address="203.0.113.9")):
        assert origin().address == "203.0.113.9"
    assert origin() == Origin()
