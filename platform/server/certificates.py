"""Expiry of the TLS certificates of the public address, of upstreams and of connectors.

A periodic task reads the certificates, and the metrics report what it has stored in Redis.
"""

import json
import logging
import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from django.conf import settings
from redis import Redis

from core.work.notifications import blocking_client
from tenants.models import Connector, Upstream

logger = logging.getLogger(__name__)
_KEY = "platform:certificates"
_TIMEOUT_SECONDS = 10.0
_THREADS = 8
_HTTPS_PORT = 443


class Certificate(NamedTuple):
    """The certificate of a server: what the server is for, and the Unix time at which the certificate expires."""

    use: str
    server: str
    expires_at: float


def check() -> int:
    """Read the certificates of all servers, and store when they expire. Return their number.

    The certificate of a server that does not answer is left out: other metrics report servers that are down.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        found = [certificate for certificate in threads.map(_read, sorted(_servers())) if certificate is not None]
    with blocking_client(settings.REDIS_URL) as client:
        client.set(_KEY, json.dumps(found))
    return len(found)


def stored(client: "Redis") -> list[Certificate]:
    """Return the certificates that the last check has found."""
    text: Any = client.get(_KEY)
    return [Certificate(*values) for values in json.loads(text or "[]")]


def _servers() -> set[tuple[str, str]]:
    """Return the use and the address, `host:port`, of all servers that are reached by https."""
    upstreams = Upstream.objects.values_list("base_url", flat=True)
    connectors = Connector.objects.values_list("url", flat=True)
    return {
        *_addresses("public address", [settings.PUBLIC_URL]),
        *_addresses("upstream", upstreams),
        *_addresses("connector", connectors),
    }


def _addresses(use: str, urls: Iterable[str]) -> Iterable[tuple[str, str]]:
    for url in urls:
        try:
            parts = urlsplit(url)
            if parts.scheme == "https" and parts.hostname:
                host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
                yield use, f"{host}:{parts.port or _HTTPS_PORT}"
        except ValueError:
            logger.warning("the address of an %s is not a valid URL", use)


def _read(server: tuple[str, str]) -> Certificate | None:
    use, address = server
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    context = ssl.create_default_context()
    # An expired certificate, or one of a private authority, is read as well. Nothing is sent to the server.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((name, int(port)), timeout=_TIMEOUT_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=name) as secure,
        ):
            encoded = secure.getpeercert(binary_form=True)
        certificate = x509.load_der_x509_certificate(encoded or b"")
    except (OSError, ValueError) as error:
        logger.warning("the certificate of %s cannot be read: %s", address, error)
        return None
    return Certificate(use, address, certificate.not_valid_after_utc.timestamp())
