"""Probes and numbers for operators: `/livez`, `/readyz`, `/version`, `/metrics`. None of them ever calls a model."""

import time
from typing import Any

import psycopg
import redis
from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from config.safety import powerful_role

_READY_FOR_SECONDS = 2.0


class _Known:
    """What the last probes found, so that frequent ones cost nothing."""

    ready_at: float | None = None
    migrated: bool = False


async def livez(_: HttpRequest) -> HttpResponse:
    """200 as long as the event loop turns; asks nobody else."""
    return JsonResponse({"status": "live"})


def readyz(_: HttpRequest) -> HttpResponse:
    """200 when requests can be served: database, migrations, Redis. 503 with the reasons otherwise."""
    if _Known.ready_at is not None and time.monotonic() - _Known.ready_at < _READY_FOR_SECONDS:
        return JsonResponse({"status": "ready"})
    reasons = [reason for check in (_database, _broker) if (reason := check())]
    if reasons:
        return JsonResponse({"status": "not ready", "reasons": reasons}, status=503)
    _Known.ready_at = time.monotonic()
    return JsonResponse({"status": "ready"})


def version(_: HttpRequest) -> HttpResponse:
    """The version that is running."""
    return JsonResponse({"version": settings.VERSION})


def metrics(_: HttpRequest) -> HttpResponse:
    """This process's numbers in Prometheus' text format."""
    return HttpResponse(generate_latest(), content_type=CONTENT_TYPE_LATEST)


def _database() -> str | None:
    """Migrations are looked at until they are all applied: a running process cannot lose them."""
    try:
        if (reason := powerful_role()) is not None:
            return reason
        pending = [] if _Known.migrated else _pending_migrations()
    except (psycopg.OperationalError, DatabaseError):
        return "the database does not answer"
    _Known.migrated = not pending
    return f"{len(pending)} migrations are not applied" if pending else None


def _pending_migrations() -> list[Any]:
    executor = MigrationExecutor(connection)
    return list(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _broker() -> str | None:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2) as broker:
            broker.ping()
    except redis.RedisError:
        return "Redis does not answer"
    return None
