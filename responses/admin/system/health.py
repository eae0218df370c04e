"""Health checks of the dependencies, run in parallel with a short timeout each."""

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

# Far below the interval of 15 s in which the page repeats the checks.
_TIMEOUT_SECONDS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """Result of one check. `is_healthy` is None if the dependency is not configured."""

    name: str
    is_healthy: bool | None
    detail: str
    milliseconds: int | None = None


def checks() -> list[HealthCheck]:
    """Run all checks. None of them causes costs at a provider."""
    probes: list[tuple[str, Callable[[], str | None]]] = [
        ("PostgreSQL", _database),
        ("Redis", _redis),
        ("Sandbox", _sandbox),
        *((f"Search engine {name}", lambda url=url: _connect(url)) for name, url in _engines()),
    ]
    # In parallel: the page waits for the slowest dependency, not for the sum of all timeouts.
    with ThreadPoolExecutor(len(probes)) as threads:
        return list(threads.map(lambda probe: _run_check(*probe), probes))


def _run_check(name: str, probe: Callable[[], str | None]) -> HealthCheck:
    began = time.monotonic()
    try:
        detail = probe()
    except (OSError, TimeoutError, psycopg.Error, redis.RedisError, SandboxUnavailable) as error:
        return HealthCheck(name=name, is_healthy=False, detail=_reason(error))
    if detail is None:
        return HealthCheck(name=name, is_healthy=None, detail="not configured")
    return HealthCheck(name=name, is_healthy=True, detail=detail, milliseconds=round((time.monotonic() - began) * 1000))


def _reason(error: Exception) -> str:
    # Messages of drivers contain addresses and user names, so they are not shown.
    if isinstance(error, SandboxUnavailable):
        return str(error)
    return "no response in time" if isinstance(error, TimeoutError) else "not responding"


def _database() -> str:
    config = settings.DATABASES["default"]
    names = {"host": config["HOST"], "port": config["PORT"], "user": config["USER"], "dbname": config["NAME"]}
    with psycopg.connect(**names, password=config["PASSWORD"], connect_timeout=2) as database:
        database.execute("SELECT 1")
    return "responding"


def _redis() -> str:
    with redis.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=_TIMEOUT_SECONDS, socket_timeout=_TIMEOUT_SECONDS
    ) as client:
        client.ping()
    return "responding"


def _sandbox() -> str | None:
    if not settings.SANDBOX_URL:
        return None
    info = asyncio.run(asyncio.wait_for(containers.service().info(), _TIMEOUT_SECONDS))
    return f"up to {info.max_memory} per container"


def _engines() -> list[tuple[str, str]]:
    rows = [(row.name, row.base_url) for row in SearchEngine.objects.filter(enabled=True).order_by("name")[:10]]
    return [*rows, *([("SEARXNG_URL", settings.SEARXNG_URL)] if settings.SEARXNG_URL else [])]


def _connect(url: str) -> str:
    # A search may be billed by the engine, so only the TCP connection is tried.
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "", port), timeout=_TIMEOUT_SECONDS):
        return "reachable"
