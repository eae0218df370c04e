"""Metrics that are read on request: queues and runs of the whole installation, and pools of this process.

Every web process returns the metrics of the installation, so use their maximum instead of their sum. They are read at
most once in `_FRESH_SECONDS`, over partial indexes and with a time limit. Metrics from PostgreSQL or Redis are missing
while that server does not answer.
"""

import logging
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import psycopg
import redis
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection, connections
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from core.clock import now
from core.work import heartbeats, task_runs
from core.work.notifications import blocking_client
from responses.models import IS_DUE
from server import certificates
from tenants import scope

logger = logging.getLogger(__name__)
_FRESH_SECONDS = 5.0
_TIMEOUT_MS = 2000
_WAIT_SECONDS = 3.0
# Counting stops here, which bounds the cost: a queue of this length is long enough for any alert.
_MOST = 100_000
# Each query reads only index entries of unfinished work. `since` is the time from which an entry waits. Deliveries to
# endpoints that are failing or disabled wait for the endpoint, not for us.
_QUEUES = {
    "background": (
        "SELECT count(*), min(since) FROM (SELECT created_at AS since FROM responses_response"  # noqa: S608 - constant
        " WHERE status IN ('queued', 'in_progress') AND background AND lease_until IS NULL"
        f" AND waits_until IS NULL AND {IS_DUE} LIMIT %s) AS waiting"
    ),
    "batches": (
        "SELECT count(*), min(since) FROM (SELECT created_at AS since FROM responses_batch"
        " WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling') LIMIT %s) AS waiting"
    ),
    "webhooks": (
        "SELECT count(*), min(since) FROM (SELECT next_attempt_at AS since FROM responses_webhookdelivery AS delivery"
        " JOIN responses_webhookendpoint AS endpoint ON endpoint.id = delivery.endpoint_id"
        " WHERE endpoint.enabled AND endpoint.failing_since IS NULL"
        " AND state = 'pending' AND next_attempt_at <= now() LIMIT %s) AS waiting"
    ),
    "mail": (
        "SELECT count(*), min(since) FROM (SELECT next_attempt_at AS since FROM tenants_maildelivery"
        " WHERE state = 'pending' AND next_attempt_at <= now() LIMIT %s) AS waiting"
    ),
    "vector_store_files": (
        "SELECT count(*), min(since) FROM (SELECT created_at AS since FROM responses_vectorstorefile"
        " WHERE status = 'in_progress' LIMIT %s) AS waiting"
    ),
}
_STATES = """
SELECT status, background, count(*), count(*) FILTER (WHERE lease_until < now()) FROM (
    SELECT status, background, lease_until FROM responses_response WHERE status IN ('queued', 'in_progress') LIMIT %s
) AS active GROUP BY status, background
"""
_DATABASE = """
SELECT pg_database_size(current_database()), numbackends, current_setting('max_connections')::int FROM pg_stat_database
WHERE datname = current_database()
"""
# Without any backup, the age of the installation.
_BACKUP = "SELECT coalesce((SELECT state_of FROM tenants_lastbackup), min(applied)) FROM django_migrations"
_KINDS = ("web", "worker", "beat")


class _Source:
    """A server whose metrics are read in a thread, so that a server that hangs does not delay the others."""

    def __init__(self, dependency: str, read: Callable[[], list[Metric]]) -> None:
        self.dependency = dependency
        self._read = read
        self._lock = threading.Lock()
        self._read_at = -_FRESH_SECONDS
        self._reading: threading.Event | None = None
        self._metrics: list[Metric] | None = None

    def metrics(self) -> list[Metric] | None:
        """Return the metrics, which may be up to `_FRESH_SECONDS` old; None if the server does not answer."""
        with self._lock:
            if self._reading is None and time.monotonic() - self._read_at >= _FRESH_SECONDS:
                self._reading = threading.Event()
                threading.Thread(target=self._update, args=(self._reading,), name="metrics-source", daemon=True).start()
            reading = self._reading
        if reading is not None and not reading.wait(_WAIT_SECONDS):
            return None
        return self._metrics

    def _update(self, reading: threading.Event) -> None:
        found = None
        try:
            found = self._read()
        except (DatabaseError, psycopg.Error, redis.RedisError) as error:
            logger.warning("%s does not answer: %s", self.dependency, error)
        except Exception:
            logger.exception("metrics cannot be read")
        finally:
            with self._lock:
                self._metrics, self._read_at, self._reading = found, time.monotonic(), None
            reading.set()


class SystemMetrics(Collector):
    """Metrics of the installation."""

    def __init__(self) -> None:
        self._sources = (_Source("postgresql", _from_database), _Source("redis", _from_redis))

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the servers that answer, and the availability of each server."""
        up = _gauge("ors_dependency_up", "1 if the server answers, otherwise 0.", "dependency")
        found: list[Metric] = [up]
        for source in self._sources:
            read = source.metrics()
            up.add_metric([source.dependency], 0 if read is None else 1)
            found += read or ()
        return found


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, labels=labels)


def _from_database() -> list[Metric]:
    try:
        return _measure_database()
    finally:
        # The thread ends, and with it its connection, which goes back to the pool.
        connection.close()


def _measure_database() -> list[Metric]:
    depth = _gauge("ors_queue_depth", "Waiting entries of a queue that are due, counted up to 100,000.", "queue")
    age = _gauge("ors_queue_oldest_age_seconds", "Waiting time of the oldest entry of a queue.", "queue")
    responses = _gauge("ors_active_responses", "Responses that have not ended.", "state", "mode")
    stale = _gauge("ors_stale_leases", "Runs with an expired lease.")
    size = _gauge("ors_database_size_bytes", "Size of the database.")
    sessions = _gauge("ors_database_connections", "Open connections to the database, of all clients.")
    most = _gauge("ors_database_max_connections", "Maximum number of connections of PostgreSQL.")
    backup = _gauge("ors_backup_age_seconds", "Age of the last backup, or of the installation if there is none.")
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(_TIMEOUT_MS)])

        def rows(query: str, *values: Any) -> Sequence[tuple[Any, ...]]:
            cursor.execute(query, values)
            found: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return found

        for queue, query in _QUEUES.items():
            ((count, since),) = rows(query, _MOST)
            depth.add_metric([queue], count)
            age.add_metric([queue], _age(since))
        states: Counter[tuple[str, str]] = Counter(
            {(state, mode): 0 for state in ("queued", "in_progress") for mode in ("background", "foreground")}
        )
        expired = 0
        for state, background, count, late in rows(_STATES, _MOST):
            states[state, "background" if background else "foreground"] += count
            expired += late
        for (state, mode), count in states.items():
            responses.add_metric([state, mode], count)
        stale.add_metric([], expired)
        for metric, value in zip((size, sessions, most), rows(_DATABASE)[0], strict=True):
            metric.add_metric([], value)
        backup.add_metric([], _age(rows(_BACKUP)[0][0]))
    return [depth, age, responses, stale, size, sessions, most, backup]


def _age(since: datetime | None) -> float:
    return max(0.0, (now() - since).total_seconds()) if since is not None else 0.0


def _from_redis() -> list[Metric]:
    processes = _gauge("ors_processes", "Processes with a recent heartbeat.", "kind")
    tasks = _gauge("ors_celery_queue_length", "Messages of periodic tasks that no worker has taken.")
    expiry = _gauge(
        "ors_certificate_expiry_timestamp_seconds",
        "When the TLS certificate of a server expires, as Unix time, read once an hour.",
        "use",
        "server",
    )
    with blocking_client(settings.REDIS_URL) as client:
        tasks.add_metric([], int(client.llen("celery")))
        for certificate in certificates.stored(client):
            expiry.add_metric([certificate.use, certificate.server], certificate.expires_at)
    beats = heartbeats.live_processes()
    if beats is None:
        raise redis.ConnectionError
    kinds = Counter(dict.fromkeys(_KINDS, 0))
    kinds.update(beat.kind for beat in beats)
    for kind, count in kinds.items():
        processes.add_metric([kind], count)
    return [processes, tasks, expiry, *_schedule()]


def _schedule() -> list[Metric]:
    interval = _gauge("ors_task_interval_seconds", "Interval of a periodic task.", "task")
    age = _gauge("ors_task_age_seconds", "Time since a periodic task succeeded, or since it is scheduled.", "task")
    schedule: dict[str, dict[str, Any]] = settings.CELERY_BEAT_SCHEDULE
    intervals = {str(entry["task"]): float(entry["schedule"]) for entry in schedule.values()}
    for task, seconds in intervals.items():
        interval.add_metric([task], seconds)
    for task, since in task_runs.ages(intervals).items():
        age.add_metric([task], since)
    return [interval, age]


class DiskMetrics(Collector):
    """Metrics of the disks that this process writes to."""

    @override
    def collect(self) -> Iterable[Metric]:
        """Return size and free space of the disks with the state and with temporary files."""
        size = _gauge("ors_disk_size_bytes", "Size of the disk with the folder.", "folder")
        free = _gauge("ors_disk_free_bytes", "Space that is left on the disk with the folder.", "folder")
        for name, path in (("state", settings.STATE_DIR), ("temporary", tempfile.gettempdir())):
            # The folder may not exist if files are stored elsewhere.
            with suppress(OSError):
                usage = shutil.disk_usage(path)
                size.add_metric([name], usage.total)
                free.add_metric([name], usage.free)
        return [size, free]


class PoolMetrics(Collector):
    """Metrics of the pool of database connections of this process."""

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the statistics of the pool."""
        stats: dict[str, float] = connections["default"].pool.get_stats()  # type: ignore[attr-defined]
        gauges = (
            ("ors_db_pool_size", "Connections of the pool.", "pool_size"),
            ("ors_db_pool_max_size", "Maximum number of connections of the pool.", "pool_max"),
            ("ors_db_pool_available", "Idle connections of the pool.", "pool_available"),
            ("ors_db_pool_waiting", "Threads that wait for a connection.", "requests_waiting"),
        )
        for name, documentation, key in gauges:
            yield GaugeMetricFamily(name, documentation, stats.get(key, 0))
        counters = (
            ("ors_db_pool_requests", "Connections that threads have requested.", "requests_num", 1),
            (
                "ors_db_pool_wait_seconds",
                "Total waiting time of threads for a connection, in seconds.",
                "requests_wait_ms",
                1000,
            ),
            ("ors_db_pool_timeouts", "Requests that got no connection in time.", "requests_errors", 1),
            ("ors_db_pool_connection_errors", "Failed attempts to connect.", "connections_errors", 1),
        )
        for name, documentation, key, divisor in counters:
            yield CounterMetricFamily(name, documentation, stats.get(key, 0) / divisor)
