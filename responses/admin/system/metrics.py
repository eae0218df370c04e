"""What the page of the system tells: read from catalogues and by partial indexes, never by going through a table."""

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

MOST = 1000
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
    """What waits, counted as far as a thousand, and since when the first of it does."""

    name: str
    waiting: int | None
    since: datetime | None = None
    note: str = ""

    @property
    def count(self) -> str:
        """The number, or that nobody knows it."""
        if self.waiting is None:
            return "–"
        return f"{self.waiting:,}" + ("+" if self.waiting >= MOST else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that lives, or one that holds runs and tells nothing of itself. `load` is what it says it does."""

    kind: str
    name: str
    version: str = ""
    started_at: datetime | None = None
    beat_at: datetime | None = None
    load: str = ""
    leases: int = 0
    is_silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Those of the platform. `is_known` False: Redis does not answer, and only holders of leases are known."""

    rows: Sequence[Process] = field(default_factory=tuple)
    is_known: bool = True
    missing: Sequence[str] = ()


# -- versions ----------------------------------------------------------------------------------------------------------


def versions() -> list[tuple[str, str]]:
    """What runs here, in which version."""
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
    """How many migrations are applied, and which are not."""
    known = _known_migrations()
    recorder = MigrationRecorder(connection)
    applied = recorder.applied_migrations().keys() & known
    last = recorder.migration_qs.order_by("-applied").values_list("app", "name", "applied").first()
    pending = sorted(known - applied)
    return {"applied": len(applied), "pending": [f"{app}.{name}" for app, name in pending], "last": last}


@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).graph.nodes)


# -- processes and queues ----------------------------------------------------------------------------------------------


def processes() -> Processes:
    """Who lives, and who holds the leases of runs."""
    beats = heartbeats.live_processes()
    held = Counter(queries.holders())
    rows = [_process(beat, held.pop(beat.name, 0)) for beat in beats or ()]
    silent = [Process(kind="unknown", name=name, leases=count, is_silent=True) for name, count in held.items()]
    kinds = {row.kind for row in rows}
    missing = [] if beats is None else [kind for kind in ("worker", "beat") if kind not in kinds]
    return Processes(rows=[*rows, *silent], is_known=beats is not None, missing=missing)


def _process(beat: Heartbeat, leases: int) -> Process:
    told = dict(beat.facts)
    if "slots" in told:
        load = f"{told['held']:,} of {told['slots']:,} slots"
    elif "sent_at" in told:
        ago = max(0, round(now().timestamp() - told["sent_at"]))
        load = f"sent {str(told['task']).rpartition('.')[2]} {ago} s ago"
    elif "runs" in told:
        load = f"{told['runs']:,} runs, {told['server']}"
    else:
        load = "has sent nothing yet" if beat.kind == "beat" else ""
    return Process(
        kind=beat.kind,
        name=beat.name,
        version=beat.version,
        started_at=beat.started_at,
        beat_at=beat.beat_at,
        load=load,
        leases=leases,
    )


def queues() -> list[Queue]:
    """What waits, wherever things wait."""
    waiting, oldest = queries.queue()
    batches = Batch.objects.filter(status__in=OPEN_BATCHES)
    files = VectorStoreFile.objects.filter(status="in_progress")
    return [
        Queue(name="Background responses", waiting=waiting, since=oldest, note="wait for a worker"),
        _queue("Batches", batches, note="validated, answered or written"),
        _deliveries(),
        _queue("Files of vector stores", files, note="read and embedded"),
        _tasks(),
    ]


def _queue(name: str, rows: QuerySet[Any], *, note: str) -> Queue:
    moments = list(rows.order_by("created_at").values_list("created_at", flat=True)[:MOST])
    return Queue(name=name, waiting=len(moments), since=moments[0] if moments else None, note=note)


def _deliveries() -> Queue:
    # Their index is by endpoint, so that the oldest is known among those that are looked at.
    pending = WebhookDelivery.objects.filter(state=DeliveryState.PENDING)
    moments = list(pending.values_list("next_attempt_at", flat=True)[:MOST])
    due = [moment for moment in moments if moment is not None and moment <= now()]
    return Queue(
        name="Webhook deliveries",
        waiting=len(moments),
        since=min(due, default=None),
        note=f"{len(due):,} due, the others wait for their next attempt",
    )


def _tasks() -> Queue:
    try:
        with _redis() as client:
            waiting, under_way = int(client.llen("celery")), int(client.hlen("unacked"))
    except redis.RedisError:
        return Queue(name="Tasks", waiting=None, note="Redis does not answer")
    return Queue(name="Tasks", waiting=waiting, note=f"{under_way:,} under way")


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
    """The state of PostgreSQL, as it counts itself."""
    with connection.cursor() as cursor:
        cursor.execute(_DATABASE)
        total, backends, most, hit, read, commits, rollbacks, deadlocks, temporary, longest, locked = cursor.fetchone()
    return [
        ("Size", size(total)),
        ("Connections", f"{backends:,} of {most:,}"),
        ("Cache hits", f"{100 * hit / (hit + read):.1f} %" if hit + read else "–"),
        ("Transactions", f"{commits:,} committed, {rollbacks:,} rolled back"),
        ("Longest transaction", "–" if longest is None else f"{float(longest):.1f} s"),
        ("Waiting for locks", f"{locked:,}"),
        ("Deadlocks", f"{deadlocks:,}"),
        ("Temporary files", size(temporary)),
    ]


def tables() -> list[dict[str, Any]]:
    """The largest tables: their rows as the planner estimates them, and their sizes as the files have them."""
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
    """What Redis says of itself; None where it does not answer."""
    try:
        with _redis() as client:
            found: dict[str, Any] = client.info()
    except redis.RedisError:
        return None
    return found


def broker(info: dict[str, Any] | None) -> list[tuple[str, str]]:
    """The state of Redis."""
    if info is None:
        return []
    hits, misses = info.get("keyspace_hits", 0), info.get("keyspace_misses", 0)
    return [
        ("Memory", f"{size(info.get('used_memory', 0))} of {_limit(info)}"),
        ("Clients", f"{info.get('connected_clients', 0):,}"),
        ("Commands", f"{info.get('instantaneous_ops_per_sec', 0):,} per second"),
        ("Keys found", f"{100 * hits / (hits + misses):.1f} %" if hits + misses else "–"),
        ("Keys evicted", f"{info.get('evicted_keys', 0):,}"),
        ("Keys", f"{_keys(info.values()):,}"),
        ("Up for", f"{info.get('uptime_in_seconds', 0) // 3600:,} h"),
    ]


def _limit(info: dict[str, Any]) -> str:
    return size(info["maxmemory"]) if info.get("maxmemory") else "no limit"


def _keys(values: Iterable[Any]) -> int:
    return sum(value["keys"] for value in values if isinstance(value, dict) and "keys" in value)


def _redis_version(info: dict[str, Any] | None) -> str:
    if info is None:
        return "does not answer"
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return str(info.get("redis_version", "unknown"))


def _redis() -> Any:
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=_REDIS_SECONDS,
        socket_timeout=_REDIS_SECONDS,
        retry=redis.retry.Retry(NoBackoff(), 0),
    )
