"""Probes and metrics for operators: `/livez`, `/readyz`, `/version`, `/metrics`. None of them calls an upstream."""

import asyncio
import mmap
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import psycopg
import redis
from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CONTENT_TYPE_LATEST

from core.load.draining import draining
from core.work.notifications import blocking_client
from server.metrics import metrics_server
from server.safety import unusable_database
from server.web import warm_up

# Load balancers probe every web process often; a positive result is reused for this long.
_READY_FOR_SECONDS = 2.0
# After a failure, checks must succeed for this long: a database that restarts accepts connections and loses them again.
_SETTLED_SECONDS = 1.0
# A server that hangs is as bad as none, and load balancers wait only seconds for a probe.
_CHECK_SECONDS = 3.0
_REDIS_SECONDS = 2.0
_SLOW = "the database or Redis does not answer in time"
_TIMES = struct.Struct("dd")
# Each proxy adds some of these.
_FORWARDED = ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-real-ip", "forwarded", "via")


class _Probes:
    """Results of earlier probes.

    The times of the last success and of the last failure after it are in memory that all web processes on the port
    share: a balancer would otherwise see the state of the process that happens to answer.
    """

    def __init__(self) -> None:
        self.migrated = False
        self._shared = mmap.mmap(-1, _TIMES.size)
        self._threads: ThreadPoolExecutor | None = None
        self._running: Future[list[str]] | None = None

    def is_known_to_be_ready(self) -> bool:
        ready_at, failed_at = self._times()
        return ready_at > failed_at and time.monotonic() - ready_at < _READY_FOR_SECONDS

    def note(self, reasons: list[str]) -> list[str]:
        """Store the result of a check, and return the reasons why the process is not ready."""
        ready_at, failed_at = self._times()
        at = time.monotonic()
        # The failures before the first success do not count: the process has only just started.
        if reasons:
            self._shared[:] = _TIMES.pack(ready_at, at if ready_at else 0.0)
        elif at - failed_at >= _SETTLED_SECONDS or not failed_at:
            self._shared[:] = _TIMES.pack(at, failed_at)
        else:
            return ["a check failed a moment ago"]
        return reasons

    def result(self) -> list[str]:
        """Check everything and return the reasons why the process is not ready."""
        try:
            return self._check().result(_CHECK_SECONDS)
        except TimeoutError:
            return self.note([_SLOW])

    async def async_result(self) -> list[str]:
        """Return the same as `result`, from the event loop."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                return await asyncio.shield(asyncio.wrap_future(self._check()))
        except TimeoutError:
            return self.note([_SLOW])

    def _check(self) -> "Future[list[str]]":
        """Check everything in a thread, once for all probes that wait for it."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        if self._running is None or self._running.done():
            self._running = self._threads.submit(_reasons)
        return self._running

    def _times(self) -> tuple[float, float]:
        ready_at, failed_at = _TIMES.unpack(self._shared[:])
        return ready_at, failed_at


# Created before the processes are forked.
_probes = _Probes()


def livez(_: HttpRequest | None = None) -> HttpResponse:
    """Respond 200 while the event loop runs."""
    # Checks no dependency: restarting this process would not repair a database.
    return JsonResponse({"status": "live"})


def readyz(_: HttpRequest) -> HttpResponse:
    """Respond 200 if database, migrations and Redis allow serving requests, otherwise 503 with the reasons.

    Without Redis, requests of keys with limits are refused, unless LIMITS_FAIL is `open`.
    """
    return _known_answer() or _answer(_probes.result())


async def async_readyz() -> HttpResponse:
    """Respond like `readyz`, but accept any `Host` header and work even if no thread is free."""
    return _known_answer() or _answer(await _probes.async_result())


def _known_answer() -> HttpResponse | None:
    if draining.is_announced:
        return _not_ready(["the process is shutting down"])
    return JsonResponse({"status": "ready"}) if _probes.is_known_to_be_ready() else None


def _answer(reasons: list[str]) -> HttpResponse:
    return _not_ready(reasons) if reasons else JsonResponse({"status": "ready"})


def _reasons() -> list[str]:
    try:
        return _probes.note([reason for check in (_database, _broker, _warm_up) if (reason := check())])
    finally:
        connection.close()


def _not_ready(reasons: list[str]) -> HttpResponse:
    answer = JsonResponse({"status": "not ready", "reasons": reasons}, status=HTTPStatus.SERVICE_UNAVAILABLE)
    # Otherwise Django would log every probe during the start of a process as an error.
    answer._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001 - Django's own mark
    return answer


def version(_: HttpRequest) -> HttpResponse:
    """Respond with the running version."""
    return JsonResponse({"version": settings.VERSION})


def metrics(request: HttpRequest) -> HttpResponse:
    """Respond with the metrics of the web processes in Prometheus' text format, if the client may read them."""
    if settings.METRICS_TOKEN:
        if not metrics_server.has_token(request.headers.get("authorization", "")):
            return _refused("METRICS_TOKEN is required.", HTTPStatus.UNAUTHORIZED)
    elif settings.METRICS_PORT:
        return _refused("The metrics have a separate port.", HTTPStatus.NOT_FOUND)
    elif not metrics_server.is_local(
        request.META.get("REMOTE_ADDR", ""),
        # Behind a proxy on this machine that adds no header, all clients would be local.
        is_forwarded=settings.TRUSTED_PROXIES > 0 or any(name in request.headers for name in _FORWARDED),
    ):
        text = "Only clients on this machine may read the metrics, and only without proxies (TRUSTED_PROXIES)."
        return _refused(f"{text} Set METRICS_TOKEN or METRICS_PORT for others.", HTTPStatus.FORBIDDEN)
    return HttpResponse(metrics_server.exposition(of_system=True), content_type=CONTENT_TYPE_LATEST)


def _refused(reason: str, status: HTTPStatus) -> HttpResponse:
    return HttpResponse(f"{reason}\n", status=status, content_type="text/plain")


def _database() -> str | None:
    try:
        if (reason := unusable_database()) is not None:
            return reason
        # Once applied, migrations are not checked again: a running process cannot lose them.
        pending = [] if _probes.migrated else _pending_migrations()
    except (psycopg.OperationalError, DatabaseError):
        return "the database is unreachable"
    _probes.migrated = not pending
    return f"{len(pending)} migrations are not applied" if pending else None


def _pending_migrations() -> list[Any]:
    executor = MigrationExecutor(connection)
    return list(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _warm_up() -> str | None:
    return "the process is warming up" if warm_up.is_pending() else None


def _broker() -> str | None:
    if settings.LIMITS_FAIL == "open":
        # Requests do not need Redis then: listeners poll the database while it is away.
        return None
    try:
        with blocking_client(settings.REDIS_URL, seconds=_REDIS_SECONDS) as broker:
            broker.ping()
    except redis.RedisError:
        return "Redis is unreachable"
    return None
