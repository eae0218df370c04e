"""Django's test client, for requests to the site in the process of the test."""

from functools import cache
from typing import Any

from django.test import Client
from django.test.client import ClientHandler


@cache
def _handler(*, enforce_csrf_checks: bool) -> ClientHandler:
    return ClientHandler(enforce_csrf_checks)


class SiteClient(Client):
    """A test client with its own cookies.

    All clients share the middleware, as all requests to a web process do. Django's client loads it once per client,
    and WhiteNoise then reads the attributes of every static file.
    """

    def __init__(self, *, enforce_csrf_checks: bool = False, **defaults: Any) -> None:
        super().__init__(enforce_csrf_checks, **defaults)
        self.handler = _handler(enforce_csrf_checks=enforce_csrf_checks)
