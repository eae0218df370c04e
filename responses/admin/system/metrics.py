"""Metrics of the system page: versions, processes, queues, PostgreSQL and Redis.

Everything is read from system catalogues and partial indexes. No function scans a table.
"""

import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any

import redis
import redis.retry
from django.conf import settings
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import QuerySet
from redis.backoff import NoBackoff

from console.widgets import size
from kernel import heartbeats
from kernel.clock import now
from kernel.heartbeats import Heartbeat
from responses.admin.live import queries
from responses.models.batches import OPEN_BATCHES, Batch
from responses.models.vector_stores import VectorStoreFile
from responses.webhooks.models import DeliveryState, WebhookDelivery

# Entries of a queue that are counted at most, which bounds the cost of a refresh every five seconds.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Length of a queue, counted up to `MAX_COUNT`, and the time of its oldest entry.

    `waiting` is None if the length is unknown.
    """

    name: str
    waiting: int | None
    since: datetime | None = None
    note: str = ""

    @property
    def count(self) -> str:
        """Return the length for display: "1,000+" at the limit, a dash if unknown."""
        if self.waiting is None:
            return "–"
        return f"{self.waiting:,}" + ("+" if self.waiting >= MAX_COUNT else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformProcess:
    """Process with a heartbeat, or the owner of leases that has none. `load` is the work it reported last."""

    kind: str
    name: str
    version: str = ""
    started_at: datetime | None = None
    last_heartbeat_at: datetime | None = None
    load: str = ""
    leases: int = 0
    has_no_heartbeat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformProcesses:
    """Processes of the platform.

    `is_known` is False if Redis does not answer; then only owners of leases are listed. `missing` are the kinds of
    process that must run but have no heartbeat.
    """

    rows: Sequence[PlatformProcess] = field(default_factory=tuple)
    is_known: bool = True
    missing: Sequence[str] = ()


# -- versions ----------------------------------------------------------------------------------------------------------


def versions() -> list[tuple[str, str]]:
    """Return the versions of the platform, its servers and its main libraries."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        (database,) = cursor.fetchone()
    return [
        ("Platform", settings.VERSION),
        ("Python", platform.python_version()),
        ("PostgreSQL", str(database)),
        ("Redis", _redis_version(redis_info())),
        *((name, _library(name)) for name in _LIBRARIES),
    ]


@cache
def _library(name: str) -> str:
    return version(name)


def migrations() -> dict[str, Any]:
    """Return the number of applied migrations, the pending ones, and the last one with its time."""
    known = _known_migrations()
    recorder = MigrationRecorder(connection)
    # Only migrations of the installed code: the table keeps rows of migrations that were squashed or removed.
    applied = recorder.applied_migrations().keys() & known
    last = recorder.migration_qs.order_by("-applied").values_list("app", "name", "applied").first()
    pending = sorted(known - applied)
    return {"applied": len(applied), "pending": [f"{app}.{name}" for app, name in pending], "last": last}


# Loading the migrations imports all their modules. They do not change while the process runs.
@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).graph.nodes)


# -- processes and queues ----------------------------------------------------------------------------------------------


def processes() -> PlatformProcesses:
    """Return the processes with a heartbeat, and the owners of leases without one."""
    beats = heartbeats.live_processes()
    leases = Counter(queries.holders())
    rows = [_process(beat, leases.pop(beat.name, 0)) for beat in beats or ()]
    # What is left has no heartbeat: the process has died, or cannot reach Redis. Its leases will expire.
    silent = [
        PlatformProcess(kind="unknown", name=name, leases=count, has_no_heartbeat=True)
        for name, count in leases.items()
    ]
    # Web processes are not checked: this page would not be served without one.
    kinds = {row.kind for row in rows}
    missing = [] if beats is None else [kind for kind in ("worker", "beat") if kind not in kinds]
    return PlatformProcesses(rows=[*rows, *silent], is_known=beats is not None, missing=missing)


def _process(beat: Heartbeat, leases: int) -> PlatformProcess:
    facts = dict(beat.facts)
    # Each kind of process reports its own facts: workers slots, the scheduler its last task, web processes their runs.
    if "slots" in facts:
        load = f"{facts['held']:,} of {facts['slots']:,} slots"
    elif "sent_at" in facts:
        ago = max(0, round(now().timestamp() - facts["sent_at"]))
        load = f"sent {str(facts['task']).rpartition('.')[2]} {ago} s ago"
    elif "runs" in facts:
        load = f"{facts['runs']:,} runs, {facts['server']}"
    else:
        load = "no task sent yet" if beat.kind == "beat" else ""
    return PlatformProcess(
        kind=beat.kind,
        name=beat.name,
        version=beat.version,
        started_at=beat.started_at,
        last_heartbeat_at=beat.beat_at,
        load=load,
        leases=leases,
    )


def queues() -> list[Queue]:
    """Return the lengths of all queues."""
    waiting, oldest = queries.queue()
    batches = Batch.objects.filter(status__in=OPEN_BATCHES)
    files = VectorStoreFile.objects.filter(status="in_progress")
    return [
        Queue(name="Background responses", waiting=waiting, since=oldest, note="waiting for a worker"),
        _queue("Batches", batches, note="validating, in progress or finalizing"),
        _deliveries(),
        _queue("Vector store files", files, note="being extracted and embedded"),
        _tasks(),
    ]


def _queue(name: str, rows: QuerySet[Any], *, note: str) -> Queue:
    moments = list(rows.order_by("created_at").values_list("created_at", flat=True)[:MAX_COUNT])
    return Queue(name=name, waiting=len(moments), since=moments[0] if moments else None, note=note)


def _deliveries() -> Queue:
    # The index is ordered by endpoint and not by time, so the oldest entry is that of the rows that were read.
    pending = WebhookDelivery.objects.filter(state=DeliveryState.PENDING)
    moments = list(pending.values_list("next_attempt_at", flat=True)[:MAX_COUNT])
    due = [moment for moment in moments if moment is not None and moment <= now()]
    return Queue(
        name="Webhook deliveries",
        waiting=len(moments),
        since=min(due, default=None),
        note=f"{len(due):,} due, the others are scheduled for a retry",
    )


def _tasks() -> Queue:
    try:
        with _redis() as client:
            # Celery keeps waiting tasks in the list `celery`, and delivered ones in the hash `unacked`.
            waiting, unacknowledged = int(client.llen("celery")), int(client.hlen("unacked"))
    except redis.RedisError:
        return Queue(name="Celery tasks", waiting=None, note="Redis does not respond")
    return Queue(name="Celery tasks", waiting=waiting, note=f"{unacknowledged:,} in progress")


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


def tables() -> list[dict[str, Any]]:
    """Return the largest tables with the planner's row estimate and their sizes on disk."""
    with connection.cursor() as cursor:
        cursor.execute(_SIZES, [_TABLES])
        return [
            {
                "name": name,
                "rows": f"{rows:,}",
                "table": size(table),
                "indexes": size(indexes),
                "dead": f"{dead:,}",
                "vacuumed": vacuumed,
            }
            for name, rows, table, indexes, dead, vacuumed in cursor.fetchall()
        ]


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
    return [
        ("Memory", f"{size(info.get('used_memory', 0))} of {_limit(info)}"),
        ("Clients", f"{info.get('connected_clients', 0):,}"),
        ("Commands", f"{info.get('instantaneous_ops_per_sec', 0):,} per second"),
        ("Hit rate", f"{100 * hits / (hits + misses):.1f} %" if hits + misses else "–"),
        ("Evicted keys", f"{info.get('evicted_keys', 0):,}"),
        ("Keys", f"{_keys(info.values()):,}"),
        ("Uptime", f"{info.get('uptime_in_seconds', 0) // 3600:,} h"),
    ]


def _limit(info: dict[str, Any]) -> str:
    return size(info["maxmemory"]) if info.get("maxmemory") else "no limit"


# INFO has one entry per logical database, each with its number of keys.
def _keys(values: Iterable[Any]) -> int:
    return sum(value["keys"] for value in values if isinstance(value, dict) and "keys" in value)


def _redis_version(info: dict[str, Any] | None) -> str:
    if info is None:
        return "not responding"
    # Valkey reports the Redis version it is compatible with, in addition to its own.
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return str(info.get("redis_version", "unknown"))


def _redis() -> Any:
    # No retries and a short timeout: the page must show that Redis is down instead of waiting for it.
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=_REDIS_SECONDS,
        socket_timeout=_REDIS_SECONDS,
        retry=redis.retry.Retry(NoBackoff(), 0),
    )
