"""Readiness probe of the web process."""

import http.client
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from launcher.address import Address


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A request to ``/readyz``. ``host_header`` is a name in ALLOWED_HOSTS, or None."""

    address: Address
    host_header: str | None

    def is_ready(self) -> bool:
        # As sent by a proxy that terminates TLS: with SECURE_TLS, plain requests would be redirected.
        headers = {"X-Forwarded-Proto": "https", **({"Host": self.host_header} if self.host_header else {})}
        try:
            with closing(
                http.client.HTTPConnection(self.address.client_host, self.address.port, timeout=2)
            ) as connection:
                connection.request("GET", "/readyz", headers=headers)
                return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def host_header(environment: Mapping[str, str]) -> str | None:
    """Return a name from ALLOWED_HOSTS, or None if it is not set."""
    # With ALLOWED_HOSTS set, web may reject requests that use its IP address.
    names = [name.strip() for name in environment.get("ALLOWED_HOSTS", "").split(",") if name.strip(" *")]
    return names[0].lstrip(".") if names else None
