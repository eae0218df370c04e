"""The address that the web server listens on."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher import ports
from launcher.errors import LaunchError
from launcher.options import Options

DEFAULT_PORT = 8000
LOOPBACK = "127.0.0.1"
LOCAL_HOSTS = {"localhost": "localhost", LOOPBACK: LOOPBACK, "::1": "[::1]"}
# All interfaces, and the address by which a client on this machine reaches them.
WILDCARD_HOSTS = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - the user may ask for it


@dataclass(frozen=True, kw_only=True)
class Address:
    """A host and port to listen on; ``url`` is how a client on this machine reaches it."""

    host: str
    port: int

    @property
    def client_host(self) -> str:
        return WILDCARD_HOSTS.get(self.host, self.host)

    @property
    def url(self) -> str:
        host = f"[{self.client_host}]" if ":" in self.client_host else self.client_host
        return f"http://{host}:{self.port}"


def allowed_hosts(*, host: str) -> str | None:
    """Return ALLOWED_HOSTS for a host to listen on, or None if the default applies or cannot be derived."""
    # On all interfaces, the names by which others reach this machine are unknown.
    if host in WILDCARD_HOSTS or host in LOCAL_HOSTS:
        return None
    return ",".join((*LOCAL_HOSTS.values(), f"[{host}]" if ":" in host else host))


def choose(*, options: Options, environment: Mapping[str, str]) -> Address:
    """Return the address with the port of the option or of PORT; by default 8000 or the next free port.

    Raises LaunchError if the requested port is in use or not a number.
    """
    requested = options.port or _port_of(environment)
    if requested is None:
        return Address(host=options.host, port=ports.prefer(host=options.host, port=DEFAULT_PORT))
    if not ports.is_free(host=options.host, port=requested):
        raise LaunchError(
            f"Port {requested} on {options.host} is in use. Stop the process that uses it or choose another --port."
        )
    return Address(host=options.host, port=requested)


def _port_of(environment: Mapping[str, str]) -> int | None:
    text = environment.get("PORT", "").strip()
    if not text:
        return None
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise LaunchError(f"PORT must be a number between 1 and 65535, not {text!r}.")
    return int(text)
