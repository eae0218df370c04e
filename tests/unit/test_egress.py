"""URLs that egress refuses before anything is sent, regardless of their spelling and of DNS answers."""

import socket
from collections.abc import Sequence

import httpx2
import pytest
from django.core.exceptions import ImproperlyConfigured

from core.egress import Egress
from core.egress_policy import AllowList
from core.errors import EgressFailed, EgressRefused

PUBLIC = "93.184.216.34"
SECONDS = 5.0

REFUSED = [
    # Other schemes, other ports, no host.
    "",
    "example.com",
    "//example.com/",
    "http://example.com/",
    "http://example.com:443/",
    "https://example.com:80/",
    "https://example.com:8443/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:-443/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "data:text/plain,hello",
    "https:///path",
    "https:/example.com/",
    "https://",
    # Private addresses, and all others that are not public.
    "https://127.0.0.1/",
    "https://127.8.9.10/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://168.63.129.16/",
    "https://100.64.0.1/",
    "https://100.100.100.200/",
    "https://192.0.0.192/",
    "https://192.88.99.1/",
    "https://198.18.0.1/",
    "https://192.0.2.1/",
    "https://0.0.0.0/",
    "https://0.1.2.3/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    # Other notations of loopback addresses.
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://0X7F.0.0.1/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://0177.0.0.01/",
    "https://127.1/",
    "https://127.0.1/",
    "https://127.0.0.1./",
    "https://127.0.0.1.0/",
    "https://127.0.0.0x1/",
    "https://127.0.0.256/",
    "https://0/",
    "https://1.2.3.4.0x/",
    "https://%31%32%37.0.0.1/",
    "https://１２７.0.0.1/",  # full-width digits
    "https://①②⑦.⓪.⓪.①/",
    "https://127。0。0。1/",  # ideographic full stops
    # IPv6.
    "https://[::1]/",
    "https://[::]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::127.0.0.1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::FFFF:93.184.216.34]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b:1::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001::1]/",
    "https://[2001:0:7f00:1::]/",
    "https://[2001:db8::1]/",
    "https://[2001:2::1]/",
    "https://[3fff::1]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[2606:2800:220:1::1%25eth0]/",
    "https://[ff02::1]/",
    "https://[fec0::1]/",
    "https://[2606:2800:220:1::1/",
    "https://::1/",
    # Names of private networks, in any case and with a dot at the end.
    "https://localhost/",
    "https://LOCALHOST/",
    "https://localhost./",
    "https://LocalHost.LocalDomain/",
    "https://printer.local/",
    "https://metadata.google.internal/",
    "https://METADATA.GOOGLE.INTERNAL/",
    "https://metadata.google.internal./",
    "https://anything.localhost/",
    "https://router.home.arpa/",
    "https://redis/",
    "https://example.com./",
    "https://bücher.example/",
    "https://ⓔxample.com/",
    "https://.example.com/",
    "https://example..com/",
    f"https://{'a' * 64}.example.com/",
    f"https://{'a.' * 130}example.com/",
    # URLs that two parsers could read differently.
    "https://user@example.com/",
    "https://user:password@example.com/",
    "https://example.com@127.0.0.1/",
    "https://127.0.0.1\\@example.com/",
    "https://example.com\\.evil.test/",
    "https://example.com\n.evil.test/",
    "https://example.com/\r\nHost: evil.test",
    "https://example.com/\tx",
    "https://example.com/ x",
    " https://example.com/",
    "https://example.com/\n",
    "https://example.com/\x00",
    "https://exa mple.com/",
    "https://example.com:443:80/",
    "https://example.com/" + "a" * 8192,
]

ADDRESSES_REFUSED = [
    ["127.0.0.1"],
    ["10.1.2.3"],
    ["169.254.169.254"],
    ["168.63.129.16"],
    ["::1"],
    ["::ffff:10.0.0.1"],
    ["64:ff9b::a00:1"],
    ["2002:a00:1::"],
    ["fe80::1%eth0"],
    ["fd12::1"],
    ["0.0.0.0"],
    ["239.1.1.1"],
    [PUBLIC, "10.1.2.3"],
    [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946", "::1"],
    [],
]


class Names:
    """Resolver with one answer per lookup; the last one is repeated. Counts the lookups."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


def guarded(names: Names, *allow: str) -> Egress:
    return Egress(resolve=names, allow=AllowList.parse(allow))


@pytest.mark.parametrize("url", REFUSED)
async def test_a_forbidden_url_is_refused_before_any_lookup(url: str) -> None:
    names = Names([PUBLIC])
    with pytest.raises(EgressRefused):
        await guarded(names).get(url, max_bytes=1, timeout=SECONDS)
    assert names.asked == []


@pytest.mark.parametrize("url", REFUSED)
def test_a_forbidden_url_is_refused_by_the_check_alone(url: str) -> None:
    with pytest.raises(EgressRefused):
        Egress().check(url)


@pytest.mark.parametrize("addresses", ADDRESSES_REFUSED, ids=" ".join)
async def test_a_name_with_a_private_address_is_refused(addresses: list[str]) -> None:
    names = Names(addresses)
    with pytest.raises(EgressRefused):
        await guarded(names).get("https://files.example.com/", max_bytes=1, timeout=SECONDS)
    assert names.asked == ["files.example.com"]


async def test_every_refusal_has_the_same_message() -> None:
    errors = set()
    for url, answer in [("https://127.1/", []), ("https://a.example/", ["10.0.0.1"]), ("https://b.example/", [])]:
        with pytest.raises(EgressRefused) as refused:
            await guarded(Names(answer)).get(url, max_bytes=1, timeout=SECONDS)
        errors.add((refused.value.message, refused.value.code, refused.value.status))
    sentence = "The URL is not allowed. It must be an https URL that resolves to a public address."
    assert errors == {(sentence, "url_not_allowed", 400)}


async def test_an_unknown_name_has_the_same_error_as_a_private_one() -> None:
    names = Names(socket.gaierror(socket.EAI_NONAME, "unknown"))
    with pytest.raises(EgressRefused):
        await guarded(names).get("https://nowhere.example/", max_bytes=1, timeout=SECONDS)


async def test_a_resolver_failure_is_not_a_refusal() -> None:
    names = Names(socket.gaierror(socket.EAI_AGAIN, "try again"))
    with pytest.raises(EgressFailed):
        await guarded(names).get("https://example.com/", max_bytes=1, timeout=SECONDS)


@pytest.mark.parametrize("url", REFUSED)
async def test_a_forbidden_url_is_refused_by_other_clients_as_well(url: str) -> None:
    names = Names(["127.0.0.1"])
    async with httpx2.AsyncClient(transport=guarded(names).transport(), trust_env=False) as client:
        with pytest.raises((EgressRefused, httpx2.InvalidURL, httpx2.UnsupportedProtocol)):
            await client.get(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "HTTPS://EXAMPLE.COM:443/a%20b?c=d#e",
        "https://xn--bcher-kva.example/ü",
        "https://93.184.216.34/",
        "https://[2606:2800:220:1:248:1893:25c8:1946]/",
        "https://internal.example.com/",
        "https://1password.com/",
        "https://0xide.computer/",
        "https://example.com?q=@127.0.0.1",
    ],
)
def test_public_urls_are_allowed(url: str) -> None:
    Egress().check(url)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080/"),
        ("127.0.0.0/8", "https://127.9.9.9:1/"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
        ("::1", "http://[::1]:8080/"),
        ("[fd00::/8]:8080", "http://[fd12::1]:8080/"),
        ("169.254.169.254", "http://169.254.169.254/"),
        ("redis", "http://redis:9000/"),
        ("Wiki.Internal:80", "http://wiki.internal/"),
        ("example.com", "http://EXAMPLE.com:8000/"),
        ("10.0.0.0/8", "http://name.example/"),
        ("10.0.0.0/8", "http://name.internal/"),
    ],
)
def test_an_allowlist_entry_allows_its_target(entry: str, url: str) -> None:
    Egress(allow=AllowList.parse([entry])).check(url)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("127.0.0.1", "http://127.0.0.2/"),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/"),
        ("127.0.0.1", "http://2130706433/"),
        ("127.0.0.1", "http://user@127.0.0.1/"),
        ("127.0.0.1:8080", "http://127.0.0.1/"),
        ("127.0.0.1:8080", "http://localhost:8081/"),
        ("redis", "http://redis.example.com/"),
        ("redis", "http://xredis/"),
        ("example.com", "http://sub.example.com/"),
        ("example.com", "http://10.0.0.1/"),
        ("10.0.0.0/8", "ftp://10.0.0.1/"),
        ("10.0.0.0/8", "http://11.0.0.1/"),
    ],
)
def test_an_allowlist_entry_allows_nothing_else(entry: str, url: str) -> None:
    with pytest.raises(EgressRefused):
        Egress(allow=AllowList.parse([entry])).check(url)


@pytest.mark.parametrize(
    ("entry", "url", "addresses"),
    [
        ("10.0.0.0/8", "http://name.example/", [PUBLIC]),
        ("10.0.0.0/8", "http://name.example/", ["10.0.0.1", PUBLIC]),
        ("10.0.0.0/8", "https://name.example/", ["10.0.0.1", "192.168.0.1"]),
        ("10.0.0.0/8", "https://name.internal/", [PUBLIC]),
        ("10.0.0.0/8:8080", "https://name.example/", ["10.0.0.1"]),
        ("wiki.corp", "http://wiki.corp/", ["169.254.169.254"]),
        ("wiki.corp", "http://wiki.corp/", ["fe80::1"]),
        ("wiki.corp", "http://wiki.corp/", ["::ffff:169.254.169.254"]),
        ("wiki.corp", "https://other.corp/", ["10.0.0.1"]),
    ],
)
async def test_an_allowlist_entry_does_not_allow_other_addresses_of_a_name(
    entry: str, url: str, addresses: list[str]
) -> None:
    with pytest.raises(EgressRefused):
        await guarded(Names(addresses), entry).get(url, max_bytes=1, timeout=SECONDS)


@pytest.mark.parametrize(
    "entry", ["10.0.0.1/8", "300.0.0.1", "127.1", "http://redis", "redis:http", "a b", "user@host", "[fd00::/8", ":80"]
)
def test_an_invalid_allowlist_entry_stops_the_start(entry: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="EGRESS_ALLOW"):
        AllowList.parse([entry])


@pytest.mark.parametrize("url", ["http://10.0.0.7:8080/mcp", "http://[fd00::7]:8080/", "http://wiki.corp:8080/"])
def test_only_the_url_of_the_operator_is_allowed(url: str) -> None:
    egress = Egress().trusting(url)
    egress.check(url)
    for other in (url.replace("8080", "8081"), "http://10.0.0.8:8080/", "http://[fd00::8]:8080/"):
        with pytest.raises(EgressRefused):
            egress.check(other)
