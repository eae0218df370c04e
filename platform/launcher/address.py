"""Free ports, the address that the web server listens on, and the probe of its readiness."""

import errno
import http.client
import random
import socket
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from launcher.errors import LaunchError, RefusedStart

NEIGHBOURS = 20
_LOWEST, _EPHEMERAL = 16_384, 32_768
_TRIES = 20


def is_free(*, host: str, port: int) -> bool:
    """Return whether a server could listen on the port now.

    Raises LaunchError if it never could, because the address is not local or the port is privileged.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Otherwise connections of a server that has just stopped (TIME_WAIT) would make the port appear in use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as unknown:
        raise LaunchError(f"The host {host} cannot be resolved: {unknown.strerror}.") from unknown
    except OSError as refused:
        if refused.errno == errno.EADDRINUSE:
            return False
        if refused.errno == errno.EACCES:
            raise LaunchError(f"Only root may listen on port {port}: choose a --port from 1024 on.") from refused
        raise LaunchError(
            f"Cannot listen on {host} port {port} ({refused.strerror}): choose another --host."
        ) from refused
    return True


def any_free_port(*, host: str = "127.0.0.1") -> int:
    """Return a port that is free at the moment. Another server may take it before the caller does."""
    # Systems use ports from 32768 on for outgoing connections, which could take this one before the caller listens.
    for _ in range(_TRIES):
        candidate = random.randrange(_LOWEST, _EPHEMERAL)  # noqa: S311 - any of them will do
        if is_free(host=host, port=candidate):
            return candidate
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def usual_port(*, base: int, key: str) -> int:
    """Return a port between ``base`` and ``base`` + 2,500 that depends only on the key."""
    # Instances in different directories can start at the same time without choosing the same port.
    return base + zlib.crc32(key.encode()) % 2500


def prefer_port(*, host: str, port: int) -> int:
    """Return the port if it is free, else one of the next 20, else any free port."""
    for candidate in range(port, min(port + NEIGHBOURS, 65536)):
        if is_free(host=host, port=candidate):
            return candidate
    return any_free_port(host=host)


DEFAULT_PORT = 8000
LOOPBACK = "127.0.0.1"
LOCAL_HOSTS = {"localhost": "localhost", LOOPBACK: LOOPBACK, "::1": "[::1]"}
# Hosts that stand for all interfaces, with the address by which a client on this machine reaches them.
WILDCARD_HOSTS = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - the user may ask for it


@dataclass(frozen=True, kw_only=True)
class Address:
    """A host and port to listen on. ``url`` is the URL by which a client on this machine reaches it."""

    host: str
    port: int

    @property
    def client_host(self) -> str:
        return WILDCARD_HOSTS.get(self.host, self.host)

    @property
    def url(self) -> str:
        host = f"[{self.client_host}]" if ":" in self.client_host else self.client_host
        return f"http://{host}:{self.port}"

    def is_ready(self, *, host_header: str | None) -> bool:
        """Return whether ``/readyz`` answers. ``host_header`` is a name in ALLOWED_HOSTS, or None."""
        # The header of a proxy that terminates TLS: with SECURE_TLS, plain requests would be redirected.
        headers = {"X-Forwarded-Proto": "https", **({"Host": host_header} if host_header else {})}
        try:
            with closing(http.client.HTTPConnection(self.client_host, self.port, timeout=2)) as connection:
                connection.request("GET", "/readyz", headers=headers)
                return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def allowed_hosts(*, host: str) -> str | None:
    """Return ALLOWED_HOSTS for a host to listen on, or None if the default applies or cannot be derived."""
    # On all interfaces, the names by which others reach this machine are unknown.
    if host in WILDCARD_HOSTS or host in LOCAL_HOSTS:
        return None
    return ",".join((*LOCAL_HOSTS.values(), f"[{host}]" if ":" in host else host))


def host_header(environment: Mapping[str, str]) -> str | None:
    """Return a name from ALLOWED_HOSTS, or None if it is not set."""
    # With ALLOWED_HOSTS set, web may reject requests that use its IP address.
    names = [name.strip() for name in environment.get("ALLOWED_HOSTS", "").split(",") if name.strip(" *")]
    return names[0].lstrip(".") if names else None


def choose(*, host: str, port: int | None, environment: Mapping[str, str]) -> Address:
    """Return the address with the port of the option or of PORT; by default 8000 or the next free port.

    Raises LaunchError if the requested port is in use or not a number.
    """
    text = environment.get("PORT", "").strip()
    if port is None and text:
        if not text.isdigit() or not 0 < int(text) < 65536:
            raise RefusedStart(f"PORT must be a number between 1 and 65535, not {text!r}.")
        port = int(text)
    if port is None:
        return Address(host=host, port=prefer_port(host=host, port=DEFAULT_PORT))
    if not is_free(host=host, port=port):
        raise LaunchError(f"Port {port} on {host} is in use. Stop the process that uses it or choose another --port.")
    return Address(host=host, port=port)
