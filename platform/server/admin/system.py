"""System page: versions, processes, queues, databases and health checks, and the configuration.

Everything is read from system catalogues and partial indexes. No function scans a table.
"""

import asyncio
import json
import logging
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html

from console.tables import Cell, Column, Table
from console.widgets import size
from containers import services as containers
from core import interpreter
from core.clock import now
from core.db.database import database_conninfo
from core.work import heartbeats, task_runs
from core.work.heartbeats import Heartbeat
from core.work.notifications import blocking_client
from core.work.task_runs import TaskRun
from responses.admin import configuration
from responses.admin.live.active import holders, read_active
from responses.models.batches import OPEN_BATCHES, Batch
from responses.models.vector_stores import VectorStoreFile
from responses.webhooks.models import WebhookDelivery
from sandbox.client import SandboxUnavailable
from tenants.console.roles import STAFF
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import SearchEngine
from tenants.models.notifications import DeliveryState, MailDelivery

logger = logging.getLogger(__name__)
# Maximum number of entries counted per queue, which bounds the cost of a refresh every five seconds.
MAX_COUNT = 1000
_REDIS_SECONDS = 0.5
_TABLES = 15
_LIBRARIES = (
    "Django",
    "djangorestframework",
    "channels",
    "daphne",
    "uvicorn",
    "celery",
    "psycopg",
    "redis",
    "django-unfold",
    "django-allauth",
    "openai",
    "mcp",
    "pydantic",
)
# Far below the interval of 15 s in which the page repeats the health checks.
_TIMEOUT_SECONDS = 1.5


@page("system/", name="system", viewers=STAFF)
def system(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Render the complete page."""
    context = {"versions": versions(), "migrations": migrations(), "groups": configuration.groups()}
    return render(request, "console/system/page.html", title="System", **context, **_current_metrics())


@page("system/now/", name="system_now", viewers=STAFF)
def system_now(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Render processes, queues and databases, refreshed every five seconds."""
    return TemplateResponse(request, "console/system/now.html", _current_metrics())


@page("system/health/", name="system_health", viewers=STAFF)
def system_health(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Render the health checks, loaded after the page because they may take seconds."""
    return TemplateResponse(request, "console/system/health.html", {"checks": checks(), "at": now()})


def _current_metrics() -> dict[str, Any]:
    return {
        "processes": processes(),
        "restarts": restarts(),
        "queues": queues(),
        "database": database(),
        "tables": tables(),
        "tasks": tasks(),
        "slow": slow_queries(),
        "broker": broker(redis_info()),
        "at": now(),
    }


# -- versions ----------------------------------------------------------------------------------------------------------


def versions() -> list[tuple[str, str]]:
    """Return the versions of the platform, its servers and its main libraries."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        (database,) = cursor.fetchone()
    return [
        ("Platform", settings.VERSION),
        ("Python", interpreter.current().describe()),
        ("PostgreSQL", str(database)),
        ("Redis", _redis_version(redis_info())),
        *((name, _library_version(name)) for name in _LIBRARIES),
    ]


_library_version = cache(version)


def migrations() -> dict[str, Any]:
    """Return the number of applied migrations, the pending ones, and the last one with its time."""
    known = _known_migrations()
    recorder = MigrationRecorder(connection)
    # Only migrations of the installed code: the table keeps rows of migrations that were squashed or removed.
    applied = recorder.applied_migrations().keys() & known
    # The migrations of a new database have the same time, and ids in the order in which they were applied.
    rows = recorder.migration_qs.order_by("-applied", "-id").values_list("app", "name", "applied")
    last = next((row for row in rows if row[:2] in known), None)
    pending = sorted(known - applied)
    return {"applied": len(applied), "pending": [f"{app}.{name}" for app, name in pending], "last": last}


# Loading the migrations imports all their modules. They do not change while the process runs.
@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).graph.nodes)


# -- processes and queues ----------------------------------------------------------------------------------------------


def _code(text: str) -> Cell:
    return format_html('<code class="c-code">{}</code>', text)


def _bad(text: str) -> Cell:
    return format_html('<span class="c-sys-bad">{}</span>', text)


def _at(moment: datetime | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return f"{moment.astimezone(UTC):{form}}" if moment else "–"


_PROCESSES: Sequence[Column[dict[str, Any]]] = (
    Column("Kind", lambda row: row["kind"]),
    Column("Process", lambda row: _code(row["name"])),
    Column("Load", lambda row: row["load"] or "–" if "load" in row else _bad("owns leases, no heartbeat")),
    Column("Event-loop lag", lambda row: row.get("lag") or "–", is_number=True),
    Column("Database connections", lambda row: row.get("pool") or "–", is_number=True),
    Column("Leases", lambda row: str(row["leases"]), is_number=True),
    Column("Version", lambda row: row.get("version") or "–"),
    Column("Started (UTC)", lambda row: _at(row.get("started_at"))),
    Column("Last heartbeat (UTC)", lambda row: _at(row.get("last_heartbeat_at"), "%H:%M:%S")),
)
_RESTARTS: Sequence[Column[dict[str, Any]]] = (
    Column("Process", lambda row: row["name"]),
    Column("Restarts", lambda row: str(row["restarts"]), is_number=True),
    Column("Last end", lambda row: row["last_end"] or "–"),
    Column("Ended (UTC)", lambda row: _at(_moment(row["last_end_at"]))),
    Column(
        "Next start (UTC)",
        lambda row: _bad(_at(moment, "%H:%M:%S")) if (moment := _moment(row["next_start_at"])) else "running",
    ),
)
_TASKS: Sequence[Column[tuple[str, str, TaskRun | None]]] = (
    Column("Task", lambda row: _code(row[0])),
    Column("Every", lambda row: row[1], is_number=True),
    Column("Last run (UTC)", lambda row: _at(_moment(row[2].ended_at)) if row[2] else "–"),
    Column("Duration", lambda row: f"{row[2].seconds:,.2f} s" if row[2] else "–", is_number=True),
    Column("Result", lambda row: "–" if row[2] is None else "succeeded" if row[2].succeeded else _bad("failed")),
)
_QUEUES: Sequence[Column[dict[str, Any]]] = (
    Column("Queue", lambda row: row["name"]),
    Column("Waiting", lambda row: row["count"], is_number=True),
    Column("Oldest (UTC)", lambda row: _at(row["since"])),
    Column("Note", lambda row: row["note"]),
)


def processes() -> dict[str, Any]:
    """Return the table of processes with a heartbeat, and of owners of leases without one.

    `is_known` is False if Redis does not answer; then only owners of leases are listed. `missing` are the kinds of
    process that must run but have no heartbeat.
    """
    beats = heartbeats.live_processes()
    leases = Counter(holders())
    rows: list[dict[str, Any]] = [
        {
            "kind": beat.kind,
            "name": beat.name,
            "version": beat.version,
            "started_at": beat.started_at,
            "last_heartbeat_at": beat.beat_at,
            "load": _load(beat),
            "lag": f"{beat.facts['lag_ms']:,.0f} ms" if "lag_ms" in beat.facts else "",
            "pool": _pool(beat.facts.get("pool")),
            "leases": leases.pop(beat.name, 0),
        }
        for beat in beats or ()
    ]
    # Web processes are not checked: this page would not be served without one.
    kinds = {row["kind"] for row in rows}
    missing = [] if beats is None else [kind for kind in ("worker", "beat") if kind not in kinds]
    # The remaining owners have no heartbeat: they have died, or cannot reach Redis. Their leases will expire.
    for name, count in leases.items():
        rows.append({"kind": "unknown", "name": name, "leases": count})
    table = Table(title="Processes", columns=_PROCESSES, rows=rows)
    return {"table": table, "is_known": beats is not None, "missing": missing}


def restarts() -> Table[dict[str, Any]] | None:
    """Return the child processes of `manage.py up` with their numbers of restarts, or None if `up` does not run."""
    try:
        status = json.loads((settings.STATE_DIR / "processes.json").read_bytes())
        # The file of a supervisor that was killed still exists.
        os.kill(status["supervisor"], 0)
        names = ("name", "restarts", "last_end", "last_end_at", "next_start_at")
        rows = [{name: process[name] for name in names} for process in status["processes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Table(title="Restarts", columns=_RESTARTS, rows=rows)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _load(beat: Heartbeat) -> str:
    facts = dict(beat.facts)
    # Each kind of process reports its own facts: workers slots, the scheduler its last task, web processes their runs.
    if "slots" in facts:
        return f"{facts['held']:,} of {facts['slots']:,} slots"
    if "sent_at" in facts:
        ago = max(0, round(now().timestamp() - facts["sent_at"]))
        return f"sent {str(facts['task']).rpartition('.')[2]} {ago} s ago"
    if "runs" in facts:
        return f"{facts['runs']:,} runs, {facts['server']}"
    return "no task sent yet" if beat.kind == "beat" else ""


def _pool(load: Mapping[str, int] | None) -> str:
    if not load:
        return ""
    waiting = f", {load['waiting']:,} waiting" if load["waiting"] else ""
    return f"{load['used']:,} of {load['max']:,}{waiting}"


def tasks() -> Table[Any]:
    """Return the periodic tasks with their interval and their latest run, if it is known."""
    latest = task_runs.latest() or {}
    schedule = {str(entry["task"]): entry["schedule"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    rows = [(name, f"{schedule[name]:,.0f} s", latest.get(name)) for name in sorted(schedule)]
    return Table(title="Periodic tasks", columns=_TASKS, rows=rows)


def queues() -> Table[dict[str, Any]]:
    """Return the lengths of all queues, with the times of their oldest entries."""
    return Table(title="Queues", columns=_QUEUES, rows=_queues())


def _queues() -> list[dict[str, Any]]:
    """Return the rows of the table. Entries are counted up to `MAX_COUNT`."""

    def queue(name: str, waiting: int | None, note: str, since: datetime | None = None) -> dict[str, Any]:
        count = "–" if waiting is None else f"{waiting:,}" + ("+" if waiting >= MAX_COUNT else "")
        return {"name": name, "count": count, "since": since, "note": note}

    def queue_of(name: str, rows: QuerySet[Any], note: str) -> dict[str, Any]:
        moments = list(rows.order_by("created_at").values_list("created_at", flat=True)[:MAX_COUNT])
        return queue(name, len(moments), note, moments[0] if moments else None)

    active = read_active()
    batches = Batch.objects.filter(status__in=OPEN_BATCHES)
    files = VectorStoreFile.objects.filter(status="in_progress")
    found = [
        queue("Background responses", active.queued, "waiting for a worker", active.oldest_queued),
        queue("Approvals", len(active.decisions), "waiting for decisions of people"),
        queue_of("Batches", batches, "validating, in progress or finalizing"),
    ]
    # The index is ordered by endpoint and not by time, so this is the oldest of the rows that were read.
    pending = WebhookDelivery.objects.filter(state=DeliveryState.PENDING)
    moments = list(pending.values_list("next_attempt_at", flat=True)[:MAX_COUNT])
    due = [moment for moment in moments if moment is not None and moment <= now()]
    note = f"{len(due):,} due, the others are scheduled for a retry"
    found.append(queue("Webhook deliveries", len(moments), note, min(due, default=None)))
    mails = MailDelivery.objects.filter(state=DeliveryState.PENDING)
    found.append(queue_of("Mail", mails, "waiting, or scheduled for a retry"))
    found.append(queue_of("Vector store files", files, "being extracted and embedded"))
    try:
        with _redis() as client:
            # Celery keeps waiting tasks in the list `celery`, and delivered ones in the hash `unacked`.
            tasks, unacknowledged = int(client.llen("celery")), int(client.hlen("unacked"))
    except redis.RedisError:
        return [*found, queue("Celery tasks", None, "Redis does not respond")]
    return [*found, queue("Celery tasks", tasks, f"{unacknowledged:,} in progress")]


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

_DATABASE = """
SELECT pg_database_size(current_database()), stat.numbackends, current_setting('max_connections')::int,
       stat.blks_hit, stat.blks_read, stat.xact_commit, stat.xact_rollback, stat.deadlocks, stat.temp_bytes,
       (SELECT extract(epoch FROM max(now() - xact_start)) FROM pg_stat_activity WHERE datname = current_database()),
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')
FROM pg_stat_database AS stat WHERE stat.datname = current_database()
"""
_SIZES = """
SELECT class.relname, greatest(class.reltuples, 0)::bigint, pg_table_size(class.oid), pg_indexes_size(class.oid),
       stat.n_dead_tup, greatest(stat.last_vacuum, stat.last_autovacuum)
FROM pg_class AS class
JOIN pg_stat_user_tables AS stat ON stat.relid = class.oid
WHERE class.relkind = 'r'
ORDER BY pg_total_relation_size(class.oid) DESC
LIMIT %s
"""


def database() -> list[tuple[str, str]]:
    """Return figures from PostgreSQL's statistics views."""
    with connection.cursor() as cursor:
        cursor.execute(_DATABASE)
        total, backends, max_connections, hit, read, commits, rollbacks, deadlocks, temporary, longest, locked = (
            cursor.fetchone()
        )
    return [
        ("Size", size(total)),
        ("Connections", f"{backends:,} of {max_connections:,}"),
        ("Cache hit rate", f"{100 * hit / (hit + read):.1f} %" if hit + read else "–"),
        ("Transactions", f"{commits:,} committed, {rollbacks:,} rolled back"),
        ("Longest transaction", "–" if longest is None else f"{float(longest):.1f} s"),
        ("Sessions waiting for locks", f"{locked:,}"),
        ("Deadlocks", f"{deadlocks:,}"),
        ("Temporary files", size(temporary)),
    ]


_LITERALS = re.compile(r"'(?:[^']|'')*'|\b\d[\d.]*\b")
_QUERY_LENGTH = 200
_SLOW_STATEMENTS = """
SELECT query, calls, total_exec_time, mean_exec_time, max_exec_time FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY total_exec_time DESC LIMIT 10
"""
_LONG_QUERIES = """
SELECT query, extract(epoch FROM clock_timestamp() - query_start), coalesce(wait_event_type, '') FROM pg_stat_activity
WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
  AND clock_timestamp() - query_start > interval '1 second' AND query_start IS NOT NULL AND query <> ''
ORDER BY query_start LIMIT 10
"""


def slow_queries() -> Table[tuple[str, ...]]:
    """Return the statements with the most total time, or without `pg_stat_statements` those that run for over a second.

    Literals are replaced by placeholders, because they may contain data of teams.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_stat_statements')")
        (has_statistics,) = cursor.fetchone()
    if has_statistics and (statements := _slow_statements()) is not None:
        return _statements("Statement", "Calls", "Total", "Mean", "Longest", rows=statements)
    with connection.cursor() as cursor:
        cursor.execute(_LONG_QUERIES)
        running = [(_shown_query(query), f"{seconds:,.1f} s", wait) for query, seconds, wait in cursor.fetchall()]
    return _statements("Statement running for more than a second", "Since", "Waits for", rows=running)


def _statements(*titles: str, rows: Sequence[tuple[str, ...]]) -> Table[tuple[str, ...]]:
    """Return a table whose first column is SQL."""

    def cell(index: int, row: tuple[str, ...]) -> Cell:
        return row[index] or "–" if index else _code(row[index])

    columns = [Column(title, partial(cell, index)) for index, title in enumerate(titles)]
    return Table(title="Slow queries", columns=columns, rows=rows)


def _slow_statements() -> list[tuple[str, ...]] | None:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_SLOW_STATEMENTS)
            return [
                (_shown_query(query), f"{calls:,}", f"{total / 1000:,.1f} s", f"{mean:,.2f} ms", f"{longest:,.0f} ms")
                for query, calls, total, mean, longest in cursor.fetchall()
            ]
    except DatabaseError:
        # Created, but not in shared_preload_libraries, or not in the search path.
        logger.info("pg_stat_statements cannot be read")
        return None


def _shown_query(query: str) -> str:
    return _LITERALS.sub("?", " ".join(query.split()))[:_QUERY_LENGTH]


_LARGEST: Sequence[Column[tuple[Any, ...]]] = (
    Column("Table", lambda row: _code(row[0])),
    Column("Rows (estimated)", lambda row: f"{row[1]:,}", is_number=True),
    Column("Table", lambda row: size(row[2]), is_number=True),
    Column("Indexes", lambda row: size(row[3]), is_number=True),
    Column("Dead rows", lambda row: f"{row[4]:,}", is_number=True),
    Column("Last vacuum (UTC)", lambda row: _at(row[5], "%Y-%m-%d %H:%M")),
)


def tables() -> Table[tuple[Any, ...]]:
    """Return the largest tables with the planner's row estimate and their sizes on disk."""
    with connection.cursor() as cursor:
        cursor.execute(_SIZES, [_TABLES])
        return Table(title="Largest tables", columns=_LARGEST, rows=cursor.fetchall())


# -- Redis -------------------------------------------------------------------------------------------------------------


def redis_info() -> dict[str, Any] | None:
    """Return the output of Redis INFO, or None if Redis does not respond."""
    try:
        with _redis() as client:
            info: dict[str, Any] = client.info()
    except redis.RedisError:
        return None
    return info


def broker(info: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return figures from Redis INFO; empty without it."""
    if info is None:
        return []
    hits, misses = info.get("keyspace_hits", 0), info.get("keyspace_misses", 0)
    limit = size(info["maxmemory"]) if info.get("maxmemory") else "no limit"
    # INFO has one entry per logical database, each with its number of keys.
    keys = sum(value["keys"] for value in info.values() if isinstance(value, dict) and "keys" in value)
    return [
        ("Memory", f"{size(info.get('used_memory', 0))} of {limit}"),
        ("Clients", f"{info.get('connected_clients', 0):,}"),
        ("Commands", f"{info.get('instantaneous_ops_per_sec', 0):,} per second"),
        ("Hit rate", f"{100 * hits / (hits + misses):.1f} %" if hits + misses else "–"),
        ("Evicted keys", f"{info.get('evicted_keys', 0):,}"),
        ("Keys", f"{keys:,}"),
        ("Uptime", f"{info.get('uptime_in_seconds', 0) // 3600:,} h"),
    ]


def _redis_version(info: dict[str, Any] | None) -> str:
    if info is None:
        return "not responding"
    # Valkey reports the Redis version it is compatible with, in addition to its own.
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return str(info.get("redis_version", "unknown"))


def _redis() -> Any:
    # No retries and a short timeout: the page must show that Redis is down instead of waiting for it.
    return blocking_client(settings.REDIS_URL, seconds=_REDIS_SECONDS, retries=0)


# -- health checks -----------------------------------------------------------------------------------------------------


def checks() -> list[dict[str, Any]]:
    """Run all health checks of the dependencies. None of them causes costs at a provider."""
    rows = SearchEngine.objects.filter(enabled=True).order_by("name")[:10]
    engines = [(row.name, row.base_url) for row in rows]
    if settings.SEARXNG_URL:
        engines.append(("SEARXNG_URL", settings.SEARXNG_URL))
    probes: list[tuple[str, Callable[[], str | None]]] = [
        ("PostgreSQL", _check_database),
        ("Redis", _check_redis),
        ("Sandbox", _check_sandbox),
        *((f"Search engine {name}", partial(_connect, url)) for name, url in engines),
    ]
    # In parallel: the page waits for the slowest dependency, not for the sum of all timeouts.
    with ThreadPoolExecutor(len(probes)) as threads:
        return list(threads.map(lambda probe: _run_check(*probe), probes))


def _run_check(name: str, probe: Callable[[], str | None]) -> dict[str, Any]:
    """Return the result of a check. `is_healthy` is None if the dependency is not configured."""
    began = time.monotonic()
    try:
        detail = probe()
    except SandboxUnavailable as error:
        return {"name": name, "is_healthy": False, "detail": str(error)}
    # Messages of drivers contain addresses and user names, so they are not shown.
    except TimeoutError:
        return {"name": name, "is_healthy": False, "detail": "no response in time"}
    except (OSError, psycopg.Error, redis.RedisError):
        return {"name": name, "is_healthy": False, "detail": "not responding"}
    if detail is None:
        return {"name": name, "is_healthy": None, "detail": "not configured"}
    took = round((time.monotonic() - began) * 1000)
    return {"name": name, "is_healthy": True, "detail": detail, "milliseconds": took}


def _check_database() -> str:
    with psycopg.connect(database_conninfo(), connect_timeout=2) as database:
        database.execute("SELECT 1")
    return "responding"


def _check_redis() -> str:
    with blocking_client(settings.REDIS_URL, seconds=_TIMEOUT_SECONDS) as client:
        client.ping()
    return "responding"


def _check_sandbox() -> str | None:
    if not settings.SANDBOX_URL:
        return None
    info = asyncio.run(asyncio.wait_for(containers.service().info(), _TIMEOUT_SECONDS))
    return f"up to {info.max_memory} per container"


def _connect(url: str) -> str:
    # A search may be billed by the engine, so only the TCP connection is tried.
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "", port), timeout=_TIMEOUT_SECONDS):
        return "reachable"
