"""Every call that opens a connection to a server has a timeout."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

ROOT = Path(__file__).parents[2]
APPS = ("platform", "responses", "conversations", "tenants")
# Functions of libraries that open connections, or make clients that do, and the arguments that limit the attempt.
LIMITS = {
    "psycopg.connect": {"connect_timeout"},
    "psycopg.AsyncConnection.connect": {"connect_timeout"},
    "PlatformConnection.connect": {"connect_timeout"},
    "redis.Redis.from_url": {"socket_connect_timeout", "socket_timeout"},
    "redis.asyncio.Redis.from_url": {"socket_connect_timeout", "socket_timeout"},
    "redis.asyncio.BlockingConnectionPool.from_url": {"socket_connect_timeout", "socket_timeout"},
    "socket.create_connection": {"timeout"},
    "httpx2.AsyncClient": {"timeout"},
    "httpx2.Client": {"timeout"},
    "smtplib.SMTP": {"timeout"},
    "urllib.request.urlopen": {"timeout"},
}
_LAST_NAMES = {f"{name.rpartition('.')[2]}(" for name in LIMITS}
# Functions that return a connection string with the limits of the settings.
LIMITED = {"database_conninfo", "self._conninfo"}


def connecting_calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield each place, the name of the function, and the call."""
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            text = path.read_text()
            # Parsing every module takes seconds.
            for node in ast.walk(ast.parse(text)) if any(name in text for name in _LAST_NAMES) else ():
                if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in LIMITS:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", name, node


def test_every_connection_has_a_limit_of_time() -> None:
    calls = list(connecting_calls())
    without = [
        place
        for place, name, call in calls
        if not (
            LIMITS[name] <= {keyword.arg for keyword in call.keywords}
            or any(isinstance(value, ast.Call) and ast.unparse(value.func) in LIMITED for value in call.args)
        )
    ]
    assert without == []
    # Otherwise the names above have changed in the code.
    assert len(calls) > 10


@pytest.mark.parametrize("alias", ["default", "owner"])
def test_every_database_has_limits_of_time(alias: str) -> None:
    options = settings.DATABASES[alias]["OPTIONS"]
    assert {"connect_timeout", "tcp_user_timeout", "keepalives_idle"} <= options.keys()


def test_the_broker_the_cache_and_mail_have_limits_of_time() -> None:
    broker: Any = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    cache: Any = settings.CACHES["default"]["OPTIONS"]
    for options in (broker, cache):
        assert {"socket_timeout", "socket_connect_timeout"} <= options.keys()
    assert 0 < settings.EMAIL_TIMEOUT <= 30
