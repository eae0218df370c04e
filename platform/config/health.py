"""Probes and metrics for operators: `/livez`, `/readyz`, `/version`, `/metrics`. None of them calls an upstream."""

import time
from typing import Any

import psycopg
import redis
from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CONTENT_TYPE_LATEST

from config import metrics_server, warm_up
from config.safety import powerful_role

# Load balancers probe every web process often; a positive result is reused for this long.
_READY_FOR_SECONDS = 2.0


class _ProbeCache:
    """Results of earlier probes in this process."""

    ready_at: float | None = None
    migrated: bool = False


def livez(_: HttpRequest | None = None) -> HttpResponse:
    """Respond 200 while the event loop runs."""
    # Checks no dependency: restarting this process would not repair a database.
    return JsonResponse({"status": "live"})


def readyz(_: HttpRequest) -> HttpResponse:
    """Respond 200 if database, migrations and Redis allow serving requests, otherwise 503 with the reasons.

    Without Redis, requests of keys with limits are refused, unless LIMITS_FAIL is `open`.
    """
    if _ProbeCache.ready_at is not None and time.monotonic() - _ProbeCache.ready_at < _READY_FOR_SECONDS:
        return JsonResponse({"status": "ready"})
    reasons = [reason for check in (_database, _broker, _warm_up) if (reason := check())]
    if reasons:
        answer = JsonResponse({"status": "not ready", "reasons": reasons}, status=503)
        # Not an error for the log: probes ask every moment while a process starts.
        answer._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001 - Django's own mark
        return answer
    _ProbeCache.ready_at = time.monotonic()
    return JsonResponse({"status": "ready"})


def version(_: HttpRequest) -> HttpResponse:
    """Respond with the running version."""
    return JsonResponse({"version": settings.VERSION})


def metrics(request: HttpRequest) -> HttpResponse:
    """Respond with the metrics of the web processes in Prometheus' text format, to those who may read them."""
    if settings.METRICS_TOKEN:
        if not metrics_server.has_token(request.headers.get("authorization", "")):
            return HttpResponse("METRICS_TOKEN is required.\n", status=401, content_type="text/plain")
    elif settings.METRICS_PORT:
        return HttpResponse("The metrics have a port of their own.\n", status=404, content_type="text/plain")
    elif not metrics_server.is_local(
        request.META.get("REMOTE_ADDR", ""), is_forwarded="x-forwarded-for" in request.headers
    ):
        text = "Only clients on this machine may read the metrics. Set METRICS_TOKEN or METRICS_PORT for others.\n"
        return HttpResponse(text, status=403, content_type="text/plain")
    return HttpResponse(metrics_server.exposition(of_system=True), content_type=CONTENT_TYPE_LATEST)


def _database() -> str | None:
    try:
        if (reason := powerful_role()) is not None:
            return reason
        # Once applied, migrations are not checked again: a running process cannot lose them.
        pending = [] if _ProbeCache.migrated else _pending_migrations()
    except (psycopg.OperationalError, DatabaseError):
        return "the database is unreachable"
    _ProbeCache.migrated = not pending
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
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2) as broker:
            broker.ping()
    except redis.RedisError:
        return "Redis is unreachable"
    return None
