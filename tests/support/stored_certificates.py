"""Certificates as the periodic task that reads them stores them, for metrics that exist only with one."""

import json

from django.conf import settings

from core.work.notifications import blocking_client
from server import certificates


def store_certificate() -> None:
    """Store the certificate of an upstream."""
    with blocking_client(settings.REDIS_URL) as client:
        client.set(certificates._KEY, json.dumps([["upstream", "gpu.example:443", 2e9]]))


def delete_certificates() -> None:
    """Delete what is stored."""
    with blocking_client(settings.REDIS_URL) as client:
        client.delete(certificates._KEY)
