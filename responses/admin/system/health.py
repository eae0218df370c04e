"""Whether those answer whom the platform leans on: asked side by side, each for a moment only."""

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg
import redis
from django.conf import settings

from responses.containers import services as containers
from sandbox.client import SandboxUnavailable
from tenants.models import SearchEngine

_SECONDS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What somebody answered, and how quickly. `is_well` None: it is not configured."""

    name: str
    is_well: bool | None
    words: str
    milliseconds: int | None = None


def checks() -> list[Check]:
    """Everybody's answer. Nothing is asked that costs something."""
    asked: list[tuple[str, Callable[[], str | None]]] = [
        ("PostgreSQL", _database),
        ("Redis", _redis),
        ("Sandbox", _sandbox),
        *((f"Search engine {name}", lambda url=url: _reach(url)) for name, url in _engines()),
    ]
    with ThreadPoolExecutor(len(asked)) as threads:
        return list(threads.map(lambda each: _checked(*each), asked))


def _checked(name: str, ask: Callable[[], str | None]) -> Check:
    began = time.monotonic()
    try:
        words = ask()
    except (OSError, TimeoutError, psycopg.Error, redis.RedisError, SandboxUnavailable) as error:
        return Check(name=name, is_well=False, words=_reason(error))
    if words is None:
        return Check(name=name, is_well=None, words="not configured")
    return Check(name=name, is_well=True, words=words, milliseconds=round((time.monotonic() - began) * 1000))


def _reason(error: Exception) -> str:
    """Why not, without what drivers put into their messages: addresses, and who signs in."""
    if isinstance(error, SandboxUnavailable):
        return str(error)
    return "does not answer in time" if isinstance(error, TimeoutError) else "does not answer"


def _database() -> str:
    given = settings.DATABASES["default"]
    names = {"host": given["HOST"], "port": given["PORT"], "user": given["USER"], "dbname": given["NAME"]}
    with psycopg.connect(**names, password=given["PASSWORD"], connect_timeout=2) as database:
        database.execute("SELECT 1")
    return "answers"


def _redis() -> str:
    with redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=_SECONDS, socket_timeout=_SECONDS) as client:
        client.ping()
    return "answers"


def _sandbox() -> str | None:
    if not settings.SANDBOX_URL:
        return None
    ability = asyncio.run(asyncio.wait_for(containers.service().info(), _SECONDS))
    return f"containers of up to {ability.max_memory}"


def _engines() -> list[tuple[str, str]]:
    rows = [(row.name, row.base_url) for row in SearchEngine.objects.filter(enabled=True).order_by("name")[:10]]
    return [*rows, *([("SEARXNG_URL", settings.SEARXNG_URL)] if settings.SEARXNG_URL else [])]


def _reach(url: str) -> str:
    """A search would cost something, so only the door is tried."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "", port), timeout=_SECONDS):
        return "can be reached"
