"""Egress policy, without I/O: accepted spellings of URLs, public addresses, and the entries of EGRESS_ALLOW.

Everything is refused by default. A URL is allowed if it is https on port 443 and resolves to public addresses only, or
if an entry of EGRESS_ALLOW contains its host or its addresses.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from django.core.exceptions import ImproperlyConfigured

from core.errors import EgressRefused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAX_URL = 8192
_MAX_HOST = 253
_HTTPS = 443
_PORTS = {"http": 80, "https": _HTTPS}

_HOST = r"\[[0-9a-f:.]+\]|[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*"
_URL = re.compile(rf"(https?)://({_HOST})(?::([0-9]{{1,5}}))?(?:[/?#][^\x00-\x20\x7f\\]*)?", re.ASCII | re.IGNORECASE)
_NAME = re.compile(_HOST, re.ASCII | re.IGNORECASE)
_ENTRY = re.compile(r"(?:\[(?P<bracketed>[^\]]*)\]|(?P<plain>[^:]*))(?::(?P<port>[0-9]{1,5}))?")
# A last label like this makes browsers and the C library read the whole host as an IPv4 address in some notation.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)

_LOCAL_NAMES = ("localhost", "localdomain", "local", "internal", "home.arpa")

# Python 3.11's `is_global` considers some of these public: multicast, relays, and Azure's internal services.
_CLOSED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared address space
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host services, on a public address
        "169.254.0.0/16",  # link-local, with the metadata service of every cloud
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, with Oracle's metadata service
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
# The range that IANA has assigned for global unicast. Outside of it are loopback, IPv4-mapped and -compatible, NAT64,
# unique local, link-local and multicast addresses.
_OPEN_V6 = IPv6Network("2000::/3")
_CLOSED_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
# Refused even for names in EGRESS_ALLOW: the owner of a name's DNS must not reach the machine's metadata service.
_NEVER_BY_NAME: tuple[Network, ...] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("168.63.129.16/32"),
    IPv4Network("169.254.0.0/16"),
    IPv4Network("224.0.0.0/3"),
    IPv6Network("::/128"),
    IPv6Network("::ffff:0:0/96"),
    IPv6Network("fd00:ec2::/32"),
    IPv6Network("fe80::/10"),
    IPv6Network("ff00::/8"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Destination of a connection. `host` is a name or an address in canonical spelling, without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> Address | None:
        """The host as an address; None for a name."""
        return _literal(self.host)

    @property
    def is_local_name(self) -> bool:
        """True for a name that only resolves in private networks."""
        if self.address is not None:
            return False
        return "." not in self.host or any(self.host == name or self.host.endswith(f".{name}") for name in _LOCAL_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowEntry:
    """One entry of EGRESS_ALLOW: a network or a name, on one port or on every port."""

    network: Network | None = None
    name: str | None = None
    port: int | None = None

    def opens(self, target: Target, address: Address) -> bool:
        """Return true if the entry allows connecting to the target at this address."""
        if self.port not in {None, target.port}:
            return False
        if self.network is not None:
            return address in self.network
        return self.name == target.host and not any(address in network for network in _NEVER_BY_NAME)

    def might_open(self, target: Target) -> bool:
        """Return true if the entry allows the target for some of the addresses that its name may resolve to."""
        if (address := target.address) is not None:
            return self.opens(target, address)
        return self.port in {None, target.port} and (self.name is None or self.name == target.host)


@dataclass(frozen=True, slots=True)
class AllowList:
    """All entries of EGRESS_ALLOW."""

    entries: tuple[AllowEntry, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "AllowList":
        """Parse `10.0.0.0/8`, `10.1.2.3:8080`, `[fd00::/8]:8080`, `name` or `name:8080`.

        Raises `ImproperlyConfigured` for anything else, so the process does not start with a partial list.
        """
        return cls(tuple(_parse_entry(entry) for entry in entries))

    def allowing(self, target: "Target") -> "AllowList":
        """Return a list that also allows this host on this port."""
        address = target.address
        entry = AllowEntry(network=ip_network(str(address))) if address else AllowEntry(name=target.host)
        return AllowList((*self.entries, replace(entry, port=target.port)))

    def check(self, target: Target) -> None:
        """Raise `EgressRefused` for a target that no DNS answer could make acceptable."""
        if any(entry.might_open(target) for entry in self.entries):
            return
        public = target.address is None or is_public(target.address)
        if target.is_local_name or not public or not _is_ordinary(target):
            raise EgressRefused

    def check_addresses(self, target: Target, addresses: Sequence[Address]) -> None:
        """Raise `EgressRefused` unless connecting to every one of the addresses is allowed."""
        # All addresses are checked although only one is used: a name with public and private addresses is an attack.
        ordinary = _is_ordinary(target) and not target.is_local_name
        for address in addresses:
            opened = any(entry.opens(target, address) for entry in self.entries)
            if not opened and not (ordinary and is_public(address)):
                raise EgressRefused


def is_public(address: Address) -> bool:
    """Return true for an address of the public Internet that does not embed another address (6to4, Teredo)."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _CLOSED_V4)
    return address in _OPEN_V6 and address.is_global and not any(address in network for network in _CLOSED_V6)


def parse_url(url: str) -> Target:
    """Return the target of a plainly spelled URL; raises `EgressRefused`.

    Refuses user names, backslashes, control characters, hosts that are not ASCII (`xn--…` is) or end in a dot, zone
    ids, and IPv4 addresses in any notation but four decimal numbers.
    """
    # Parsers disagree about such URLs, so the checked host could differ from the one that is connected to.
    found = _URL.fullmatch(url) if len(url) <= _MAX_URL else None
    if found is None:
        raise EgressRefused
    scheme, host, port = found.groups()
    return target(scheme.lower(), host.lower(), int(port) if port else None)


def target(scheme: str, host: str, port: int | None) -> Target:
    """Return the target of a URL's parts, under the rules of `parse_url`; the port defaults to the scheme's."""
    bare = host.removeprefix("[").removesuffix("]")
    if scheme not in _PORTS or len(bare) > _MAX_HOST:
        raise EgressRefused
    if (port := _PORTS[scheme] if port is None else port) not in range(1, 65536):
        raise EgressRefused
    if ":" in bare or _NUMBER.fullmatch(bare.rsplit(".", 1)[-1]):
        address = _literal(bare)
        if address is None:
            raise EgressRefused
        bare = str(address)
    elif not _NAME.fullmatch(bare):
        raise EgressRefused
    return Target(scheme=scheme, host=bare, port=port)


def _literal(host: str) -> Address | None:
    # Python accepts no short, octal or hexadecimal notation of IPv4. Zone ids select an interface of this machine.
    if "%" in host:
        return None
    try:
        return IPv6Address(host) if ":" in host else IPv4Address(host)
    except AddressValueError:
        return None


def _is_ordinary(target: Target) -> bool:
    return target.scheme == "https" and target.port == _HTTPS


def _parse_entry(entry: str) -> AllowEntry:
    found = _ENTRY.fullmatch(entry)
    # An IPv6 network without brackets cannot have a port: its last group would be ambiguous.
    bare_v6 = entry.count(":") > 1 and not entry.startswith("[")
    text = entry if bare_v6 or found is None else found["bracketed"] or found["plain"] or ""
    port = int(found["port"]) if found and found["port"] else None
    try:
        return AllowEntry(network=ip_network(text), port=port)
    except ValueError:
        name = text.lower()
    ends_in_number = _NUMBER.fullmatch(name.rsplit(".", 1)[-1])
    if found is None or "/" in name or ends_in_number or not _NAME.fullmatch(name):
        raise ImproperlyConfigured(
            f"EGRESS_ALLOW: {entry!r} is neither a network nor a host name (a port is optional)."
        )
    return AllowEntry(name=name, port=port)
