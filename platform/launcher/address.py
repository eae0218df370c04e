"""Where web listens."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher import ports
from launcher.errors import LaunchError
from launcher.options import Options

DEFAULT_PORT = 8000
LOOPBACK = "127.0.0.1"
HERE = {"localhost": "localhost", LOOPBACK: LOOPBACK, "::1": "[::1]"}
EVERYWHERE = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - what the user may ask for, and how to reach it


@dataclass(frozen=True, kw_only=True)
class Address:
    """A host and port to listen on; ``url`` is how a client on this machine reaches it."""

    host: str
    port: int

    @property
    def client_host(self) -> str:
        return EVERYWHERE.get(self.host, self.host)

    @property
    def url(self) -> str:
        host = f"[{self.client_host}]" if ":" in self.client_host else self.client_host
        return f"http://{host}:{self.port}"


def allowed_hosts(*, host: str) -> str | None:
    """ALLOWED_HOSTS for an address that was asked for; None when the default serves or only a person can say."""
    if host in EVERYWHERE or host in HERE:
        return None
    return ",".join((*HERE.values(), f"[{host}]" if ":" in host else host))


def choose(*, options: Options, environment: Mapping[str, str]) -> Address:
    """The port that was asked for, by option or PORT; when none was, the usual one or a free one near it.

    Raises LaunchError when the port that was asked for is taken or no number.
    """
    asked = options.port or _port_of(environment)
    if asked is None:
        return Address(host=options.host, port=ports.prefer(host=options.host, port=DEFAULT_PORT))
    if not ports.is_free(host=options.host, port=asked):
        raise LaunchError(
            f"Port {asked} on {options.host} is in use; stop what listens there or choose another --port."
        )
    return Address(host=options.host, port=asked)


def _port_of(environment: Mapping[str, str]) -> int | None:
    text = environment.get("PORT", "").strip()
    if not text:
        return None
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise LaunchError(f"PORT must be a number between 1 and 65535, not {text!r}.")
    return int(text)
