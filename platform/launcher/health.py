"""Asks web whether it serves."""

import http.client
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from launcher.address import Address


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One question to ``/readyz``; ``host_header`` is a name that web answers to."""

    address: Address
    host_header: str | None

    def is_ready(self) -> bool:
        # As a proxy that ended TLS would say: where TLS is demanded, plain questions are redirected.
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
    """A name out of ALLOWED_HOSTS: where it is set, web may refuse to be asked by its address."""
    names = [name.strip() for name in environment.get("ALLOWED_HOSTS", "").split(",") if name.strip(" *")]
    return names[0].lstrip(".") if names else None
